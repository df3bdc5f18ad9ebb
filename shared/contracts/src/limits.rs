//! The sizes that every part of the fleet agrees on. One value, one place: a client sees the same cliff everywhere.

/// Largest request, outcome or checkpoint value that travels and is stored inline, in bytes; above it a value becomes
/// a content-addressed payload.
pub const INLINE_BYTES_MAX: usize = 64 * 1024;
/// Largest single JSON value Ditto accepts anywhere, in bytes.
pub const VALUE_BYTES_MAX: usize = 8 * 1024 * 1024;
/// Deepest nesting of arrays and objects in a JSON value.
pub const JSON_DEPTH_MAX: usize = 128;
/// Longest call id, delivery id or submit key, in bytes of UTF-8.
pub const ID_BYTES_MAX: usize = 512;
/// Size of one piece of a payload transfer, in bytes.
pub const PAYLOAD_CHUNK_BYTES_MAX: usize = 256 * 1024;
/// Most calls in one claim request.
pub const CLAIM_BATCH_MAX: usize = 64;
/// Most items in one ledger batch.
pub const LEDGER_BATCH_MAX: usize = 256;
/// Most tasks in one graph.
pub const GRAPH_TASKS_MAX: usize = 4096;
/// Iterations of a loop that names no limit of its own.
pub const LOOP_ITERATIONS_DEFAULT: u64 = 32;
/// Longest error message that may leave a worker, in characters.
pub const ERROR_MESSAGE_CHARS_MAX: usize = 512;
/// Longest error code, in characters.
pub const ERROR_CODE_CHARS_MAX: usize = 64;
