//! The console: one JSON line per delivery. Nobody can ask it afterwards, so it is class N.

use std::{
    io::Write,
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use ditto_contracts::{
    Json,
    interaction::{OutputInput, OutputReceipt},
};

use super::{DeliveryContext, OutputSink, SinkError};

/// Writes to a writer, one whole line at a time.
#[derive(Clone)]
pub struct ConsoleSink {
    writer: Arc<Mutex<Box<dyn Write + Send>>>,
}

impl ConsoleSink {
    /// Lines go to this writer.
    pub fn new(writer: impl Write + Send + 'static) -> Self {
        Self { writer: Arc::new(Mutex::new(Box::new(writer))) }
    }

    /// Lines go to standard error, so that results keep standard output for themselves.
    pub fn stderr() -> Self {
        Self::new(std::io::stderr())
    }
}

#[async_trait]
impl OutputSink for ConsoleSink {
    async fn deliver(&self, _: &DeliveryContext<'_>, input: &OutputInput) -> Result<OutputReceipt, SinkError> {
        let line = Json::from_serialize(input).map_err(|error| SinkError::NotDelivered(error.to_string()))?;
        // Line breaks in a value that was passed through are white space; one delivery is one line.
        let mut line = line.as_str().replace(['\n', '\r'], " ");
        line.push('\n');
        let writer = self.writer.clone();
        let written = tokio::task::spawn_blocking(move || {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write_all(line.as_bytes()).and_then(|()| writer.flush())
        })
        .await;
        match written {
            Ok(Ok(())) => {
                Ok(OutputReceipt { artifacts: input.artifacts.clone(), ..OutputReceipt::accepted(&input.delivery_id) })
            }
            // Part of the line may be out.
            Ok(Err(error)) => Err(SinkError::Unconfirmed(error.kind().to_string())),
            Err(_) => Err(SinkError::Unconfirmed("the writer failed".into())),
        }
    }
}
