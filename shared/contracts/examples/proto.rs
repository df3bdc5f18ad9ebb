//! Writes `proto/` anew from the types: `cargo run -p ditto-contracts --example proto`.

#[path = "../tests/published/mod.rs"]
mod published;

#[allow(clippy::unwrap_used, reason = "run by hand; stops at the first defect")]
fn main() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../proto");
    for (path, content) in published::files() {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
}
