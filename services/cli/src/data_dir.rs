//! The folder of the embedded ledger, held by one process at a time.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read as _, Seek as _, Write as _},
    path::{Path, PathBuf},
};

use crate::exit::Failure;

const LOCK: &str = "lock";

/// A folder that only this process uses. The system lets go of it when the process ends, however it ends.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    lock: File,
}

impl DataDir {
    /// Creates the folder if it is missing and takes it.
    ///
    /// # Errors
    /// It cannot be created, or another process has it; the message says which.
    pub(crate) fn take(path: &Path) -> Result<Self, Failure> {
        let shown = path.display();
        let unusable = |error: std::io::Error| {
            Failure::unreachable(format!("data folder {shown}: {}", error.kind()))
                .code("DATA_DIR")
                .hint("name another with --data-dir")
        };
        std::fs::create_dir_all(path).map_err(unusable)?;
        let path = path.canonicalize().map_err(unusable)?;
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path.join(LOCK))
            .map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Failure::unreachable(format!("data folder {shown} is in use by {}", holder(&mut lock)))
                    .code("DATA_DIR_IN_USE")
                    .hint("talk to that process (`ditto runs ls`, `ditto submit`), stop it, or use --data-dir"));
            }
            Err(TryLockError::Error(error)) => return Err(unusable(error)),
        }
        // For people only; the lock itself is the system's.
        let note = format!("{} {}\n", std::process::id(), command());
        let written = lock.set_len(0).and_then(|()| lock.rewind()).and_then(|()| lock.write_all(note.as_bytes()));
        written.map_err(unusable)?;
        let ignore = path.join(".gitignore");
        if !ignore.exists() {
            std::fs::write(ignore, "*\n").map_err(unusable)?;
        }
        Ok(Self { path, lock })
    }

    /// Its absolute path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of the ledger.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.path.join("ledger.db")
    }
}

impl Drop for DataDir {
    fn drop(&mut self) {
        // Dropping the file lets go of it as well; an empty note names nobody.
        let _ = self.lock.set_len(0);
        let _ = self.lock.unlock();
    }
}

/// Who holds the folder now, if anybody does. Never waits, and takes nothing.
pub(crate) fn held_by(path: &Path) -> Option<String> {
    let mut lock = File::open(path.join(LOCK)).ok()?;
    match lock.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(holder(&mut lock)),
        Ok(()) | Err(TryLockError::Error(_)) => None,
    }
}

fn holder(lock: &mut File) -> String {
    let mut text = String::new();
    let read = lock.rewind().and_then(|()| lock.take(200).read_to_string(&mut text));
    match (read, text.trim().split_once(' ')) {
        (Ok(_), Some((pid, command))) if pid.parse::<u32>().is_ok() => {
            format!("process {pid} (ditto {})", crate::term::clean(command))
        }
        _ => "another process".into(),
    }
}

/// The subcommand of this process: no arguments, since they may hold inputs.
fn command() -> String {
    let name = std::env::args().nth(1).unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).take(32).collect();
    if name.is_empty() { "embedded".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_holder_who_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        let held = DataDir::take(&path).unwrap();
        let failure = DataDir::take(&path).unwrap_err();
        assert!(failure.message.contains(&format!("process {}", std::process::id())), "{failure}");
        assert!(held_by(&path).is_some());
        drop(held);
        assert_eq!(held_by(&path), None);
        DataDir::take(&path).unwrap();
    }
}
