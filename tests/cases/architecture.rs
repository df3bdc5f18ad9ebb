//! The map in ARCHITECTURE.md names every crate, and dependencies point down only.

use std::{collections::BTreeMap, fs, path::Path};

/// Crates by row, from the top; crates of one row never use each other.
const ROWS: &[&[&str]] = &[
    &["ditto"],
    &["ditto-coordinator", "ditto-interaction"],
    &["ditto-definition", "ditto-worker"],
    &["ditto-graph", "ditto-bus", "ditto-sql", "ditto-runtime"],
    &["ditto-contracts"],
];
/// Beside the rows: used by tests and by the bench only.
const BESIDE: &[&str] = &["ditto-test-servers", "ditto-tests", "xtask"];

/// Own crates that a crate depends on when it is built (not for its tests), by crate name, with their folder.
fn crates() -> BTreeMap<String, (String, Vec<String>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found = BTreeMap::new();
    for parent in ["shared", "services", "."] {
        for entry in fs::read_dir(root.join(parent)).unwrap() {
            let dir = entry.unwrap().path();
            let Ok(manifest) = fs::read_to_string(dir.join("Cargo.toml")) else { continue };
            if parent == "." && !["tests", "xtask"].iter().any(|name| dir.ends_with(name)) {
                continue;
            }
            let (mut section, mut name, mut own) = ("", String::new(), Vec::new());
            for line in manifest.lines().map(str::trim) {
                if line.starts_with('[') {
                    section = line;
                } else if section == "[package]" && line.starts_with("name") {
                    name = line.split('"').nth(1).unwrap_or_default().to_owned();
                } else if section == "[dependencies]" && line.starts_with("ditto-") {
                    own.push(line.split(['.', ' ', '=']).next().unwrap_or_default().to_owned());
                }
            }
            let folder = dir.file_name().unwrap().to_string_lossy().into_owned();
            let shown = if parent == "." { folder } else { format!("{parent}/{folder}") };
            found.insert(name, (shown, own));
        }
    }
    found
}

fn row(name: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&name))
}

#[test]
fn dependencies_point_down_only() {
    for (name, (_, own)) in crates() {
        let Some(at) = row(&name) else {
            assert!(BESIDE.contains(&name.as_str()), "{name} has no row");
            continue;
        };
        for used in own {
            match row(&used) {
                Some(below) => assert!(below > at, "{name} (row {at}) uses {used} (row {below})"),
                None => assert_eq!((name.as_str(), used.as_str()), ("ditto", "ditto-test-servers"), "only the bench"),
            }
        }
    }
}

#[test]
fn the_map_names_every_crate() {
    let map = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../ARCHITECTURE.md")).unwrap();
    for (name, (folder, _)) in crates() {
        assert!(map.contains(&format!("`{folder}`")), "ARCHITECTURE.md does not name {folder} ({name})");
    }
}

#[test]
fn pure_crates_have_no_runtime() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    for name in ["contracts", "graph", "definition"] {
        let manifest = fs::read_to_string(root.join(name).join("Cargo.toml")).unwrap();
        let build = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for library in ["tokio", "sqlx", "async-nats", "reqwest"] {
            assert!(!build.contains(library), "shared/{name} uses {library}");
        }
    }
}
