//! Values above the inline limit: kept by the ledger, carried as a digest, moved in pieces.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use data_encoding::BASE64;
use ditto_contracts::{
    Bucket, Json, limits,
    wire::{
        PayloadRef,
        ledger::{GetReply, GetRequest, PutReply, PutRequest},
        subjects,
    },
};
use sha2::{Digest as _, Sha256};
use tracing::debug;

use crate::{ledger::jitter, session::Session};

/// Why a payload cannot be had now.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PayloadError {
    /// There is no such payload.
    #[error("no such payload")]
    Missing,
    /// Larger than any value may be.
    #[error("a payload of {0} bytes is too large")]
    TooLarge(u32),
    /// What came is not what the digest names.
    #[error("the payload differs from its digest")]
    Altered,
    /// Nobody answered.
    #[error("{0}")]
    Unavailable(String),
}

/// Reads a payload and checks it.
pub(crate) async fn fetch(session: &Session, bucket: Bucket, payload: PayloadRef) -> Result<Bytes, PayloadError> {
    let size = payload.size as usize;
    if size > limits::VALUE_BYTES_MAX {
        return Err(PayloadError::TooLarge(payload.size));
    }
    let mut body = BytesMut::with_capacity(size);
    while body.len() < size {
        let request = GetRequest {
            bucket,
            payload: payload.to_string(),
            offset: u32::try_from(body.len()).map_err(|_| PayloadError::TooLarge(payload.size))?,
        };
        let reply: GetReply = session
            .ledger
            .ask(subjects::LEDGER_GET, &request, session.config.request_timeout)
            .await
            .map_err(|error| PayloadError::Unavailable(error.to_string()))?;
        let chunk = reply.chunk.ok_or(PayloadError::Missing)?;
        let chunk = BASE64.decode(chunk.as_bytes()).map_err(|_| PayloadError::Altered)?;
        if chunk.is_empty() || body.len() + chunk.len() > size {
            return Err(PayloadError::Altered);
        }
        body.extend_from_slice(&chunk);
    }
    if <[u8; 32]>::from(Sha256::digest(&body)) != payload.digest {
        return Err(PayloadError::Altered);
    }
    Ok(body.freeze())
}

/// Stores a payload and asks until the ledger has it all: the effect is done, its answer must not be lost.
pub(crate) async fn store(session: &Session, bucket: Bucket, value: &Json) -> PayloadRef {
    let payload = PayloadRef { digest: value.sha256(), size: u32::try_from(value.len()).unwrap_or(u32::MAX) };
    let name = payload.to_string();
    loop {
        let mut stored = false;
        for (n, piece) in value.as_bytes().chunks(limits::PAYLOAD_CHUNK_BYTES_MAX).enumerate() {
            let request = PutRequest {
                bucket,
                payload: name.clone(),
                offset: u32::try_from(n * limits::PAYLOAD_CHUNK_BYTES_MAX).unwrap_or(u32::MAX),
                chunk: BASE64.encode(piece),
            };
            stored = put(session, &request).await;
        }
        if stored {
            return payload;
        }
        // Pieces may have gone to a coordinator that is no more: begin again, pieces may be repeated.
        tokio::time::sleep(jitter(Duration::from_millis(250))).await;
    }
}

async fn put(session: &Session, request: &PutRequest) -> bool {
    loop {
        match session.ledger.ask::<_, PutReply>(subjects::LEDGER_PUT, request, session.config.request_timeout).await {
            Ok(reply) => return reply.stored,
            Err(error) => {
                debug!(%error, "a payload is not stored yet: sending it again");
                tokio::time::sleep(jitter(Duration::from_millis(250))).await;
            }
        }
    }
}
