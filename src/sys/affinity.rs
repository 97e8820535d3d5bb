//! On which processors a thread runs.
#![allow(unsafe_code)]

/// Keeps the calling thread on those of `cpus` that it may run on; does nothing if there are none, or if the system refuses.
pub(crate) fn prefer_cpus(cpus: &[u32]) {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: a set of bits, of which none is set.
    let mut allowed: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: a place for the set, as large as it says; 0 is the calling thread.
    if unsafe { libc::sched_getaffinity(0, size, &mut allowed) } != 0 {
        return;
    }
    // SAFETY: as above.
    let mut wanted: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let mut count = 0;
    for cpu in cpus
        .iter()
        .map(|cpu| *cpu as usize)
        .filter(|cpu| *cpu < size * 8)
    {
        // SAFETY: within the set.
        unsafe {
            if libc::CPU_ISSET(cpu, &allowed) {
                libc::CPU_SET(cpu, &mut wanted);
                count += 1;
            }
        }
    }
    if count > 0 {
        // SAFETY: a set as large as it says. If it fails, the thread runs where it did.
        unsafe { libc::sched_setaffinity(0, size, &wanted) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed() -> Vec<u32> {
        // SAFETY: a place for the set, as large as it says.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(
                libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set),
                0
            );
            (0..1024)
                .filter(|cpu| libc::CPU_ISSET(*cpu as usize, &set))
                .collect()
        }
    }

    #[test]
    fn a_thread_stays_within_what_it_may_use() {
        let one = std::thread::spawn(|| {
            let before = allowed();
            prefer_cpus(&[]);
            prefer_cpus(&[1023, 100_000]);
            let kept = allowed() == before || before.contains(&1023);
            prefer_cpus(&[before[0], 1_000_000]);
            (kept, allowed() == before[..1])
        });
        assert_eq!(one.join().unwrap(), (true, true));
    }
}
