//! `proto/` says what the types say, and its samples are read back unchanged.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

mod published;

use std::{collections::BTreeSet, fs, path::Path};

use ditto_contracts::wire::{Headers, Job, ResultMessage};
use serde_json::Value;

fn root() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto")
}

fn walk(dir: &Path, base: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, base, found);
        } else {
            found.insert(path.strip_prefix(base).unwrap().to_string_lossy().into_owned());
        }
    }
}

#[test]
fn proto_is_what_the_types_say() {
    let files = published::files();
    for (path, content) in &files {
        let on_disk = fs::read_to_string(root().join(path)).unwrap_or_default();
        assert_eq!(&on_disk, content, "proto/{path} is out of date: cargo run -p ditto-contracts --example proto");
    }
    let mut found = BTreeSet::new();
    walk(&root(), &root(), &mut found);
    found.remove("README.md");
    let expected: BTreeSet<String> = files.into_keys().collect();
    assert_eq!(found, expected, "proto/ holds a file that nothing publishes");
}

#[test]
fn golden_jobs_and_results_are_read_back_unchanged() {
    for name in ["job", "job-with-payload"] {
        let (headers, _) = sample(name);
        let job = Job::from_headers(&headers).unwrap();
        assert_eq!(job.to_headers(), headers, "{name}");
    }
    for name in ["result-succeeded", "result-unknown"] {
        let (headers, body) = sample(name);
        let result = ResultMessage::parse(&headers, body.clone().into()).unwrap();
        let again = ResultMessage { attempt_no: 1, ..result };
        assert_eq!(again.to_headers(), headers, "{name}");
        let written: Value = serde_json::from_slice(again.body.to_json().as_bytes()).unwrap();
        assert_eq!(written, serde_json::from_slice::<Value>(&body).unwrap(), "{name}");
    }
}

fn sample(name: &str) -> (Headers, Vec<u8>) {
    let text = fs::read_to_string(root().join(format!("golden/{name}.json"))).unwrap();
    let value: Value = serde_json::from_str(&text).unwrap();
    let mut headers = Headers::new();
    for (name, value) in value["headers"].as_object().unwrap() {
        headers.push_received(name, value.as_str().unwrap());
    }
    (headers, serde_json::to_vec(&value["body"]).unwrap())
}
