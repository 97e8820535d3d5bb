//! Every seeded bug is found, by name and with its line; the controls stay clean; checks that are off find nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use software_cuda_bugs::{BUGS, Parameters, as_words, globals, words};
use software_cuda_ptx::{
    Checks, Finding, FindingKind, Grid, HostMemory, Module, Options, Schedule, launch,
};

const SCHEDULES: [Schedule; 5] = [
    Schedule::InOrder,
    Schedule::Reversed,
    Schedule::Shuffled(1),
    Schedule::Shuffled(2),
    Schedule::Apart,
];

struct Case {
    kernel: &'static str,
    /// What has to be found, or nothing.
    kind: Option<FindingKind>,
    /// A piece of the source line that is found.
    at: &'static str,
    blocks: u32,
    dynamic: usize,
}

const fn case(kernel: &'static str, kind: FindingKind, at: &'static str) -> Case {
    Case {
        kernel,
        kind: Some(kind),
        at,
        blocks: 1,
        dynamic: 0,
    }
}

const fn control(kernel: &'static str) -> Case {
    Case {
        kernel,
        kind: None,
        at: "",
        blocks: 1,
        dynamic: 0,
    }
}

/// Every kernel of `bugs.cu`.
fn cases() -> Vec<Case> {
    use FindingKind::*;
    vec![
        control("control_exchange"),
        control("control_warp"),
        control("control_scan"),
        case("race_next", Race, "s["),
        case("race_previous", Race, "s["),
        case("race_loop", Race, "s["),
        case("race_warp", Race, "s[t"),
        case("race_shuffle", Race, "s["),
        case("outside_shared", OutOfBounds, "s[t + 1] = in[t]"),
        case("outside_variable", OutOfBounds, "a[t + (n == 64)] = in[t]"),
        Case {
            dynamic: 256,
            ..case("outside_dynamic", OutOfBounds, "d[t + 1] = in[t]")
        },
        case("unwritten_shared", Unwritten, "out[t] = s[t]"),
        case("race_global", Race, "out[0] += in[threadIdx.x]"),
        case("race_atomic", Race, "out["),
        Case {
            blocks: 2,
            ..case("race_blocks", Race, "out[")
        },
        case("stale_cache", NonCoherentRead, "in[(t + 1) % 64] + 1"),
        case("outside_global", OutOfBounds, "in[t] + in[t + 1]"),
        case("outside_null", OutOfBounds, "*(volatile u32 *)p = 1"),
        case("misaligned", Misaligned, "*(const u64 *)"),
        case("unwritten_global", Unwritten, "out[t] = out[t] + in[t]"),
        case("unwritten_local", Unwritten, "local["),
        case("barrier_in_branch", DivergentBarrier, ""),
        case("barrier_after_return", DivergentBarrier, "__syncthreads"),
        case("shuffle_in_branch", DivergentLanes, "__shfl_down_sync"),
        case("shuffle_after_return", AbsentLane, "__shfl_xor_sync"),
        case("shuffle_from_absent", AbsentLane, "__shfl_sync"),
        case("endless", Endless, "flag[1] != 5"),
        case("trap", Trap, "__trap"),
    ]
}

struct Ran {
    findings: Vec<Finding>,
    out: Vec<u32>,
}

fn run(module: &Module, case: &Case, schedule: Schedule, checks: Checks) -> Ran {
    let mut memory = HostMemory::new();
    let input = memory.allocate(&words(
        &(0..64).map(|index| index * 3 + 1).collect::<Vec<_>>(),
    ));
    let out = if case.kernel == "unwritten_global" {
        memory.allocate_unwritten(256)
    } else {
        memory.allocate(&[0; 256])
    };
    // The promise of `stale_cache` is broken by the caller.
    let out = if case.kernel == "stale_cache" {
        input
    } else {
        out
    };
    let addresses = globals(module, &mut memory);
    let parameters = Parameters::default().u64(input).u64(out).u32(64);
    let grid = Grid {
        dynamic_shared: case.dynamic,
        ..Grid::line(case.blocks, 64)
    };
    let options = Options {
        schedule,
        checks,
        most_steps: 200_000,
        traffic: false,
    };
    let report = launch(
        module,
        case.kernel,
        grid,
        &parameters.bytes,
        &addresses,
        &mut memory,
        &options,
    )
    .unwrap();
    Ran {
        findings: report.findings,
        out: as_words(memory.bytes(out)),
    }
}

#[test]
fn every_bug_is_found_in_every_schedule() {
    let module = Module::parse(BUGS).unwrap();
    let source: Vec<&str> = include_str!("../kernels/bugs.cu").lines().collect();
    for case in cases() {
        for schedule in SCHEDULES {
            let name = format!("{} {schedule:?}", case.kernel);
            let findings = run(&module, &case, schedule, Checks::ALL).findings;
            let Some(kind) = case.kind else {
                assert!(findings.is_empty(), "{name}: {findings:?}");
                continue;
            };
            let found = findings
                .iter()
                .find(|finding| finding.kind == kind)
                .unwrap_or_else(|| panic!("{name}: {findings:?}"));
            assert_eq!(found.kernel, case.kernel);
            let (file, line) = found.source.clone().unwrap();
            assert!(file.ends_with("bugs.cu"), "{file}");
            let text = source[line as usize - 1];
            assert!(text.contains(case.at), "{name}: line {line} is {text}");
            assert!(BUGS.lines().nth(found.line as usize - 1).is_some());
            assert!(
                found.place.thread[0] < 64 && found.to_string().contains(case.kernel),
                "{found}"
            );
        }
    }
}

#[test]
fn the_table_has_every_kernel() {
    let module = Module::parse(BUGS).unwrap();
    let mut there: Vec<&str> = module.kernels().collect();
    let mut claimed: Vec<&str> = cases().iter().map(|case| case.kernel).collect();
    there.sort_unstable();
    claimed.sort_unstable();
    assert_eq!(there, claimed);
}

#[test]
fn without_checks_only_what_the_hardware_notices() {
    let module = Module::parse(BUGS).unwrap();
    for case in cases() {
        let noticed = !matches!(
            case.kind,
            None | Some(FindingKind::Race | FindingKind::Unwritten | FindingKind::NonCoherentRead)
        );
        let findings = run(&module, &case, Schedule::InOrder, Checks::default()).findings;
        assert_eq!(
            !findings.is_empty(),
            noticed,
            "{}: {findings:?}",
            case.kernel
        );
    }
}

/// What the schedules are for: a wrong result, where lockstep in ascending order gives the right one.
#[test]
fn schedules_show_in_results() {
    let module = Module::parse(BUGS).unwrap();
    let out = |kernel: &'static str, schedule| {
        run(&module, &control(kernel), schedule, Checks::default()).out
    };
    let in_order = out("race_warp", Schedule::InOrder);
    let expected: Vec<u32> = (0..64u32).map(|t| (t ^ 1) * 3 + 1).collect();
    assert_eq!(in_order, expected, "lockstep hides the missing __syncwarp");
    assert_ne!(out("race_warp", Schedule::Apart), expected);
    assert_eq!(
        out("race_previous", Schedule::InOrder),
        (0..64u32)
            .map(|t| if t == 0 { 7 } else { (t - 1) * 3 + 1 })
            .collect::<Vec<_>>()
    );
    assert_ne!(
        out("race_previous", Schedule::Reversed),
        out("race_previous", Schedule::InOrder)
    );
    for kernel in ["control_exchange", "control_warp"] {
        for schedule in SCHEDULES {
            assert_eq!(
                out(kernel, schedule),
                out(kernel, Schedule::InOrder),
                "{kernel} {schedule:?}"
            );
        }
    }
}

#[test]
fn the_same_number_gives_the_same_order() {
    let module = Module::parse(BUGS).unwrap();
    let findings = |seed| {
        run(
            &module,
            &case("race_blocks", FindingKind::Race, ""),
            Schedule::Shuffled(seed),
            Checks::ALL,
        )
        .findings
    };
    for seed in 0..8 {
        assert_eq!(findings(seed), findings(seed));
    }
}
