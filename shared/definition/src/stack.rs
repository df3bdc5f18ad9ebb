//! Runs the compiler where its recursion has room.

use std::{any::Any, thread};

/// Stack of the compiler, in bytes. The expression parser needs up to 100 KiB for a level of nesting in a debug build;
/// levels are limited, so this is several times what the deepest accepted text takes. Only touched pages are used.
const STACK_BYTES: usize = 64 * 1024 * 1024;

/// Runs `work` to its end on a thread of its own.
///
/// # Errors
/// When there is no thread to be had, or when `work` panicked: a defect, which must not take a service down.
pub(crate) fn with_room<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, String> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("definition".into()).stack_size(STACK_BYTES).spawn_scoped(scope, work);
        let thread = thread.map_err(|error| format!("no thread for the compiler: {error}"))?;
        thread.join().map_err(|panic| format!("the compiler failed: {}", reason(&*panic)))
    })
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("unknown reason")
}
