//! Where deliveries go.

mod console;
mod file;
mod sink;

pub use console::ConsoleSink;
pub use file::FileSink;
pub use sink::{DeliveryContext, OutputSink, SinkError};
