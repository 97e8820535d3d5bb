//! fio, as the measure of what the device does: it hands no bytes to anybody.

use std::process::Command;

use crate::job::{Fault, Job};
use crate::turns::{Clock, Sample, cpu_seconds};

/// As many random reads of the same size as the job has, by io_uring. They are fio's own offsets.
pub(crate) fn random(job: &Job, clock: &mut Clock) -> Result<String, Fault> {
    let file = job.path.to_str().ok_or("no name")?.replace(':', "\\:");
    let before = cpu_seconds(libc::RUSAGE_CHILDREN);
    let output = Command::new("fio")
        .args(["--name=rings", "--readonly", "--thread", "--numjobs=1"])
        .args([
            "--output-format=terse",
            "--terse-version=3",
            "--invalidate=0",
        ])
        .args(["--ioengine=io_uring", "--rw=randread", "--norandommap"])
        .arg(format!("--filename={file}"))
        .arg(format!("--direct={}", u8::from(job.direct)))
        .arg(format!("--bs={}", job.size))
        .arg(format!("--iodepth={}", job.depth))
        .arg(format!("--number_ios={}", job.offsets.len()))
        .output()
        .map_err(|error| format!("fio does not start: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        // It says so on either, before the numbers.
        let said = String::from_utf8_lossy(&output.stderr);
        let why = text
            .lines()
            .chain(said.lines())
            .find(|line| !line.is_empty());
        return Err(format!("fio failed: {}", why.unwrap_or("it does not say why")).into());
    }
    // Version 3 of the terse format: the job's error is field 4, KiB read 5, milliseconds of reading 8.
    let line = text.lines().find(|line| line.starts_with("3;"));
    let fields: Vec<&str> = line.ok_or("fio printed no result")?.split(';').collect();
    let field = |at: usize| -> Result<u64, Fault> {
        let field = fields.get(at).ok_or("fio printed too little")?;
        Ok(field.parse()?)
    };
    let (error, kib, ms) = (field(4)?, field(5)?, field(8)?);
    if error != 0 || kib << 10 != job.bytes() {
        return Err(format!("fio read {kib} KiB of {} bytes, error {error}", job.bytes()).into());
    }
    if ms == 0 {
        return Err("too few reads for fio's whole milliseconds".into());
    }
    clock.sample = Some(Sample {
        wall: ms as f64 / 1e3,
        cpu: cpu_seconds(libc::RUSAGE_CHILDREN) - before,
    });
    Ok("its own offsets; whole milliseconds; CPU with its start".into())
}
