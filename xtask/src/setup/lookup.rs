//! Looks for executables where the tests will: `DITTO_TEST_BIN_DIR`, `PATH`, and Debian's folders of PostgreSQL.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

/// The first executable of that name.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let listed = ["DITTO_TEST_BIN_DIR", "PATH"].into_iter().filter_map(env::var_os);
    let listed = listed.flat_map(|list| env::split_paths(&list).collect::<Vec<_>>());
    let packaged = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let packaged = packaged.map(|version| version.path().join("bin"));
    listed
        .chain(packaged)
        .map(|dir| dir.join(name))
        .find(|path| path.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0))
}
