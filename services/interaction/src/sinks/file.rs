//! Files: one per delivery, named by its key and put there only if absent, so the same key is one delivery (class K).

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use async_trait::async_trait;
use data_encoding::HEXLOWER;
use ditto_contracts::{
    CallPolicy, ErrorClass, Json, WireError, codes,
    interaction::{OutputInput, OutputReceipt},
};
use ditto_worker::QueryAnswer;
use sha2::{Digest as _, Sha256};

use super::{DeliveryContext, OutputSink, SinkError};

/// Longest encoded key that becomes a file name as it is; a longer one is named by its digest.
const NAME_BYTES_MAX: usize = 120;

/// Writes into one directory.
#[derive(Debug, Clone)]
pub struct FileSink {
    dir: Arc<Path>,
}

/// What lies under a key.
enum Stored {
    Nothing,
    Same,
    Other,
}

impl FileSink {
    /// Creates the directory when it is missing.
    ///
    /// # Errors
    /// It cannot be created.
    pub fn open(dir: impl Into<PathBuf>) -> io::Result<Self> {
        let dir = dir.into();
        fs::create_dir_all(&dir)?;
        Ok(Self { dir: dir.into() })
    }

    /// Where the delivery with this key is.
    pub fn path(&self, key: &str) -> PathBuf {
        self.dir.join(file_name(key))
    }

    fn look(&self, key: &str, body: &[u8]) -> io::Result<Stored> {
        match fs::read(self.path(key)) {
            Ok(found) if found == body => {
                // It may lie there since a moment only: evidence must outlive the machine.
                File::open(&self.dir).and_then(|dir| dir.sync_all())?;
                Ok(Stored::Same)
            }
            Ok(_) => Ok(Stored::Other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Stored::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Puts the file there whole, unless one is there.
    fn put(&self, key: &str, body: &[u8]) -> Result<Stored, SinkError> {
        let unavailable = |error: io::Error| SinkError::Unavailable(error.kind().to_string());
        let unconfirmed = |error: io::Error| SinkError::Unconfirmed(error.kind().to_string());
        if let found @ (Stored::Same | Stored::Other) = self.look(key, body).map_err(unavailable)? {
            return Ok(found);
        }
        let temporary = self.dir.join(format!(".{}.tmp", ditto_contracts::ClaimToken::generate()));
        let written = File::create_new(&temporary).and_then(|mut file| {
            file.write_all(body)?;
            file.sync_all()
        });
        if let Err(error) = written {
            let _ = fs::remove_file(&temporary); // a leftover is only clutter
            return Err(unavailable(error));
        }
        // A link fails where the name is taken: two attempts can never replace each other's file.
        let linked = fs::hard_link(&temporary, self.path(key));
        let _ = fs::remove_file(&temporary); // as above
        match linked {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return self.look(key, body).map_err(unconfirmed);
            }
            // The system may have made the link all the same.
            Err(error) => return Err(unconfirmed(error)),
        }
        File::open(&self.dir).and_then(|dir| dir.sync_all()).map_err(unconfirmed)?;
        Ok(Stored::Same)
    }
}

/// A name without separators, dots in front or case collisions: lower-case letters, digits, `-` and `_` as they are,
/// everything else as `%` and two hexadecimal digits.
fn file_name(key: &str) -> String {
    let mut name = String::with_capacity(key.len() + 5);
    for byte in key.bytes() {
        if byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_') {
            name.push(char::from(byte));
        } else {
            name.push('%');
            name.push_str(&HEXLOWER.encode(&[byte]));
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name = format!("sha256-{}", HEXLOWER.encode(&Sha256::digest(key)));
    }
    name.push_str(".json");
    name
}

fn body_of(input: &OutputInput) -> Result<Vec<u8>, serde_json::Error> {
    let mut body = Json::from_serialize(input)?.as_bytes().to_vec();
    body.push(b'\n');
    Ok(body)
}

fn accepted(input: &OutputInput) -> OutputReceipt {
    OutputReceipt { artifacts: input.artifacts.clone(), ..OutputReceipt::accepted(&input.delivery_id) }
}

fn conflict() -> WireError {
    WireError::new(ErrorClass::Conflict, codes::KEY_CONFLICT, "another delivery is stored under this key")
}

#[async_trait]
impl OutputSink for FileSink {
    fn policy(&self) -> CallPolicy {
        CallPolicy { query: true, ..CallPolicy::keyed() }
    }

    async fn deliver(&self, cx: &DeliveryContext<'_>, input: &OutputInput) -> Result<OutputReceipt, SinkError> {
        let body = body_of(input).map_err(|error| SinkError::NotDelivered(error.to_string()))?;
        let (sink, key) = (self.clone(), cx.key().to_owned());
        let stored = tokio::task::spawn_blocking(move || sink.put(&key, &body))
            .await
            .unwrap_or_else(|_| Err(SinkError::Unconfirmed("the writer failed".into())))?;
        match stored {
            Stored::Same => Ok(accepted(input)),
            Stored::Other => Err(SinkError::NotDelivered(conflict().message)),
            Stored::Nothing => Err(SinkError::Unconfirmed("the file is gone".into())),
        }
    }

    async fn query(&self, cx: &DeliveryContext<'_>, input: &OutputInput) -> QueryAnswer<OutputReceipt> {
        let Ok(body) = body_of(input) else { return QueryAnswer::Unanswered };
        let (sink, key) = (self.clone(), cx.key().to_owned());
        match tokio::task::spawn_blocking(move || sink.look(&key, &body)).await {
            Ok(Ok(Stored::Same)) => QueryAnswer::Applied(accepted(input)),
            Ok(Ok(Stored::Other)) => QueryAnswer::Conflict,
            Ok(Ok(Stored::Nothing)) => QueryAnswer::Absent,
            Ok(Err(_)) | Err(_) => QueryAnswer::Unanswered,
        }
    }
}
