//! The file to which every step appends one line: `TAG-RUN STEP CLOCK_MONOTONIC_ns`. Latency, recovery and repeats are
//! read from it, not from what anybody says.

use std::{
    collections::{HashMap, HashSet},
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use crate::exit::Failure;

/// The variable that names the file.
pub(super) const VARIABLE: &str = "EFFECTS";

/// Nanoseconds of the clock that all processes of this machine share.
pub(super) fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).unwrap_or(0);
    part(now.tv_sec) * 1_000_000_000 + part(now.tv_nsec)
}

/// The file, for those who write to it.
#[derive(Debug)]
pub(super) struct Effects {
    file: File,
    known: Mutex<HashSet<Box<str>>>,
}

impl Effects {
    /// The file that [`VARIABLE`] names; `None`: it is not set.
    pub(super) fn from_environment() -> Result<Option<Self>, Failure> {
        let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from) else {
            return Ok(None);
        };
        let opened = Self::open(&path);
        opened.map(Some).map_err(|error| Failure::usage(format!("{VARIABLE}: {}: {}", path.display(), error.kind())))
    }

    /// Opens the file and learns what happened already.
    fn open(path: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        let text = std::fs::read_to_string(path)?;
        let known = text.lines().filter_map(|line| line.rsplit_once(' ')).map(|(name, _)| name.into()).collect();
        Ok(Self { file, known: Mutex::new(known) })
    }

    /// Appends one line in one write.
    pub(super) fn append(&self, name: &str) -> io::Result<()> {
        (&self.file).write_all(format!("{name} {}\n", monotonic_ns()).as_bytes())
    }

    /// Appends the line of this name unless it is there.
    pub(super) fn append_once(&self, name: &str) -> io::Result<()> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.insert(name.into()) {
            return self.append(name);
        }
        Ok(())
    }

    /// Whether the line of this name is there.
    pub(super) fn has(&self, name: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).contains(name)
    }
}

/// What the file says about the runs of one tag.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Times of every step, by run and step, in the order of the file.
    steps: HashMap<(String, u32), Vec<u64>>,
    /// When the client saw the end of each run.
    done: HashMap<String, u64>,
}

impl Observed {
    /// Reads the lines of a tag.
    pub(super) fn read(path: &Path, tag: &str) -> io::Result<Self> {
        Ok(Self::parse(&std::fs::read_to_string(path)?, tag))
    }

    fn parse(text: &str, tag: &str) -> Self {
        let mut observed = Self::default();
        for line in text.lines() {
            let mut words = line.split(' ');
            let (Some(run), Some(step), Some(ns)) = (words.next(), words.next(), words.next()) else { continue };
            if run.rsplit_once('-').is_none_or(|(of, _)| of != tag) {
                continue;
            }
            let Ok(ns) = ns.parse() else { continue };
            match step.parse() {
                Ok(step) => observed.steps.entry((run.to_owned(), step)).or_default().push(ns),
                Err(_) => drop(observed.done.insert(run.to_owned(), ns)),
            }
        }
        observed
    }

    /// Steps that happened at least once.
    pub(super) fn distinct(&self) -> usize {
        self.steps.len()
    }

    /// Effects beyond one per step.
    pub(super) fn repeats(&self) -> usize {
        self.steps.values().map(|times| times.len() - 1).sum()
    }

    /// When the last run ended.
    pub(super) fn last_done_ns(&self) -> Option<u64> {
        self.done.values().copied().max()
    }

    /// Times between the first effects of successive steps, in nanoseconds.
    pub(super) fn gaps_ns(&self) -> Vec<u64> {
        let mut steps: Vec<_> = self.steps.iter().map(|((run, step), times)| (run, step, times[0])).collect();
        steps.sort_unstable();
        let successive = steps.windows(2).filter(|pair| pair[0].0 == pair[1].0);
        successive.map(|pair| pair[1].2.saturating_sub(pair[0].2)).collect()
    }
}

/// Counts the lines of a growing file, reading each byte once.
#[derive(Debug)]
pub(super) struct LineCount {
    path: PathBuf,
    at: u64,
    lines: usize,
}

impl LineCount {
    /// Counts what is written from now on.
    pub(super) fn from_end(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), at: std::fs::metadata(path).map_or(0, |meta| meta.len()), lines: 0 })
    }

    /// Lines until now.
    pub(super) fn count(&mut self) -> io::Result<usize> {
        use std::io::{Read as _, Seek as _, SeekFrom};
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut new = Vec::new();
        file.read_to_end(&mut new)?;
        self.at += new.len() as u64;
        self.lines += new.iter().filter(|byte| **byte == b'\n').count();
        Ok(self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_repeats_and_ends_are_read_from_the_lines() {
        let text = "a-0 0 100\na-0 1 150\nb-0 0 160\na-0 1 170\na-0 2 250\na-1 0 500\na-0 done 300\na-1 done 600\n";
        let observed = Observed::parse(text, "a");
        assert_eq!((observed.distinct(), observed.repeats(), observed.last_done_ns()), (4, 1, Some(600)));
        assert_eq!(observed.gaps_ns(), [50, 100]);
    }

    #[test]
    fn a_known_line_is_not_written_again_even_after_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("effects");
        for _ in 0..2 {
            let effects = Effects::open(&path).unwrap();
            effects.append_once("a-0 0").unwrap();
            effects.append_once("a-0 0").unwrap();
            assert!(effects.has("a-0 0") && !effects.has("a-0 1"));
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 1);
    }
}
