//! What the kernel says about processes and the disk: `/proc`. A figure that it does not give is absent, never zero.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, path::Path};

/// What a process and all its descendants have used since they started.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Usage {
    /// User and system time, ended children included, in seconds.
    pub(super) cpu_s: f64,
    /// Written to the disk, in bytes; absent where the kernel does not let us see it.
    pub(super) written_bytes: Option<u64>,
}

struct Process {
    parent: u32,
    ticks: u64,
}

/// One look at all processes.
pub(super) struct Processes(HashMap<u32, Process>);

impl Processes {
    /// Looks.
    pub(super) fn read() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        Self(
            pids.filter_map(|pid| Some((pid, parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?)))
                .collect(),
        )
    }

    /// A process and its descendants, itself first.
    fn tree(&self, root: u32) -> Vec<u32> {
        let mut tree = vec![root];
        let mut next = 0;
        while let Some(parent) = tree.get(next).copied() {
            tree.extend(self.0.iter().filter(|(_, process)| process.parent == parent).map(|(pid, _)| *pid));
            next += 1;
        }
        tree
    }

    /// What a tree has used; `None`: there is no such process.
    pub(super) fn usage(&self, root: u32) -> Option<Usage> {
        self.0.get(&root)?;
        let mut usage = Usage { cpu_s: 0.0, written_bytes: Some(0) };
        for pid in self.tree(root) {
            let ticks = self.0.get(&pid).map_or(0, |process| process.ticks);
            usage.cpu_s += ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
            usage.written_bytes = usage.written_bytes.zip(written_bytes(pid)).map(|(sum, more)| sum + more);
        }
        Some(usage)
    }

    /// Memory of a tree, shared pages counted by their share, in KiB.
    pub(super) fn pss_kib(&self, root: u32) -> Option<u64> {
        self.0.get(&root)?;
        self.tree(root).into_iter().map(pss_kib).sum()
    }
}

/// Parent, and user and system ticks of the process and its ended children. The name may hold anything.
fn parse_stat(stat: &str) -> Option<Process> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
    let ticks = number(11)? + number(12)? + number(13)? + number(14)?;
    Some(Process { parent: fields.get(1)?.parse().ok()?, ticks })
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn written_bytes(pid: u32) -> Option<u64> {
    field(&fs::read_to_string(format!("/proc/{pid}/io")).ok()?, "write_bytes:")
}

fn pss_kib(pid: u32) -> Option<u64> {
    match fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        Ok(text) => field(&text, "Pss:"),
        // It ended meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some(0),
        Err(_) => None,
    }
}

/// Processor time that all programs of this machine have used since it started, in seconds.
pub(super) fn machine_cpu_s() -> Option<f64> {
    let ticks = parse_busy(&fs::read_to_string("/proc/stat").ok()?)?;
    Some(ticks as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User, nice, system, interrupts and what the host took; not idle time and waiting for the disk.
fn parse_busy(stat: &str) -> Option<u64> {
    let line = stat.lines().next()?.strip_prefix("cpu ")?;
    let numbers: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    Some([0, 1, 2, 5, 6, 7].into_iter().filter_map(|at| numbers.get(at)).sum())
}

/// Flushes that the disk under a folder has completed since the machine started; all programs', so measure alone.
pub(super) fn flushes(folder: &Path) -> Option<u64> {
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) =
        (((device >> 8) & 0xfff) | ((device >> 32) & !0xfff), (device & 0xff) | ((device >> 12) & !0xff));
    fs::read_to_string("/proc/diskstats").ok()?.lines().find_map(|line| parse_flushes(line, major, minor))
}

fn parse_flushes(line: &str, major: u64, minor: u64) -> Option<u64> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let is_it = fields.first()?.parse() == Ok(major) && fields.get(1)?.parse() == Ok(minor);
    fields.get(18).filter(|_| is_it)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_of_the_kernel_are_read() {
        let stat = "12 (a b) c) S 7 12 12 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 5 6 7";
        let process = parse_stat(stat).unwrap();
        assert_eq!((process.parent, process.ticks), (7, 100));
        assert_eq!(parse_busy("cpu  1 2 3 100 200 4 5 6 7 8\ncpu0 9\n"), Some(21));
        let line = " 254 0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
        assert_eq!(parse_flushes(line, 254, 0), Some(16));
        assert_eq!(parse_flushes(line, 254, 1), None);
        assert_eq!(field("rchar: 1\nwrite_bytes: 4096\n", "write_bytes:"), Some(4096));
    }

    #[test]
    fn this_process_is_among_all() {
        let usage = Processes::read().usage(std::process::id());
        assert!(usage.is_some());
    }
}
