//! A backend whose effects can be counted: a folder. Keyed effects are files created once per key, others are lines of
//! a log that only grows.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{ErrorKind, Write as _},
    path::{Path, PathBuf},
};

/// The backend.
#[derive(Debug, Clone)]
pub struct Effects {
    dir: PathBuf,
}

impl Effects {
    /// Opens the backend in this folder.
    pub fn open(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join("keys")).unwrap();
        Self { dir: dir.to_owned() }
    }

    /// Performs an effect that nothing makes idempotent.
    pub fn once(&self, id: &str) {
        self.line("N", id);
    }

    /// Records that something was read.
    pub fn read(&self, id: &str) {
        self.line("R", id);
    }

    fn line(&self, class: &str, id: &str) {
        let mut log = OpenOptions::new().create(true).append(true).open(self.dir.join("log")).unwrap();
        log.write_all(format!("{class} {id}\n").as_bytes()).unwrap();
    }

    fn key_file(&self, key: &str) -> PathBuf {
        let name: String = key.bytes().map(|b| format!("{b:02x}")).collect();
        self.dir.join("keys").join(name)
    }

    /// Performs a keyed effect; the same key again changes nothing. Answers whether it was new.
    pub fn keyed(&self, key: &str, id: &str) -> bool {
        // The rename makes it whole: a killed process leaves the effect done or not done.
        let temporary = self.dir.join(format!("tmp-{}-{:?}", std::process::id(), std::thread::current().id()));
        File::create(&temporary).unwrap().write_all(id.as_bytes()).unwrap();
        let linked = std::fs::hard_link(&temporary, self.key_file(key));
        std::fs::remove_file(&temporary).unwrap();
        match linked {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => panic!("{error}"),
        }
    }

    /// Whether this key has had its effect.
    pub fn has_key(&self, key: &str) -> bool {
        self.key_file(key).exists()
    }

    /// Effects by id: how often each one happened. `class` is `R`, `K` or `N`.
    pub fn count(&self, class: &str) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        if class == "K" {
            for entry in std::fs::read_dir(self.dir.join("keys")).unwrap() {
                let id = std::fs::read_to_string(entry.unwrap().path()).unwrap();
                *counts.entry(id).or_default() += 1;
            }
            return counts;
        }
        let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
        for line in log.lines() {
            if let Some((found, id)) = line.split_once(' ')
                && found == class
            {
                *counts.entry(id.to_owned()).or_default() += 1;
            }
        }
        counts
    }
}
