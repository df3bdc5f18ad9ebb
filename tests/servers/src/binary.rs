//! Finds the executables of servers: private directory first, then `PATH`, then where distributions hide them.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

/// Directories to look in before all others, separated as in `PATH`.
pub(crate) const BIN_DIR: &str = "DITTO_TEST_BIN_DIR";

/// The path of the executable `name`.
///
/// # Errors
/// When it is nowhere, with the command that installs it and `instead`: the environment variable by which a running
/// server can be named in its place.
pub fn find(name: &str, instead: &str) -> Result<PathBuf> {
    let Some(found) = candidates().into_iter().map(|dir| dir.join(name)).find(|path| is_executable(path)) else {
        bail!(
            "`{name}` was not found in {BIN_DIR}, PATH or /usr/lib/postgresql/*/bin: `cargo xtask test` installs it \
             (`cargo xtask setup` does only that); tests that do not kill their server can use a running one, named by {instead}"
        );
    };
    Ok(found)
}

fn candidates() -> Vec<PathBuf> {
    let mut dirs = Vec::new();
    if let Some(list) = env::var_os(BIN_DIR) {
        dirs.extend(env::split_paths(&list));
    }
    if let Ok(own) = env::current_exe() {
        dirs.extend(own.ancestors().skip(1).map(|dir| dir.join("test-servers")));
    }
    if let Some(list) = env::var_os("PATH") {
        dirs.extend(env::split_paths(&list));
    }
    dirs.extend(distribution_dirs());
    dirs
}

/// Debian keeps each major version of PostgreSQL apart and off `PATH`: newest first.
fn distribution_dirs() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/usr/lib/postgresql") else { return Vec::new() };
    let mut versions: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect();
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, dir)| dir).collect()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_server_says_how_to_get_it() {
        let error = find("no-such-server", "DITTO_TEST_NATS_URL").unwrap_err().to_string();
        assert!(error.contains("cargo xtask test"), "{error}");
        assert!(error.contains("DITTO_TEST_NATS_URL"), "{error}");
    }

    #[test]
    fn a_shell_is_found_on_path() {
        assert!(find("sh", "nothing").unwrap().is_absolute());
    }
}
