//! The first connection: options, credentials, attempts within a bound.

use std::{sync::Arc, time::Duration};

use async_nats::{Client, ConnectErrorKind, ConnectOptions, ServerAddr};
use rand::RngExt;
use tokio::time::Instant;

use super::{NatsConfig, events::Signals};

/// Why there is no bus.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The configuration cannot be right.
    #[error("nats configuration: {0}")]
    Config(String),
    /// The server does not accept these credentials.
    #[error("nats at {servers} refused the credentials")]
    Refused {
        /// Where, without credentials.
        servers: String,
    },
    /// TLS could not be set up.
    #[error("nats at {servers}: tls: {reason}")]
    Tls {
        /// Where, without credentials.
        servers: String,
        /// What went wrong.
        reason: String,
    },
    /// No server could be reached in time.
    #[error("nats at {servers} could not be reached within {within_ms} ms: {reason}")]
    Unreachable {
        /// Where, without credentials.
        servers: String,
        /// How long it was tried, in milliseconds.
        within_ms: u64,
        /// The last reason.
        reason: String,
    },
}

/// Connects, trying again within the time the configuration allows. Refused credentials are final.
pub(super) async fn connect(config: &NatsConfig, signals: &Arc<Signals>) -> Result<Client, ConnectError> {
    config.validate()?;
    // The client library asks for the process-wide provider; one that is already there is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let credentials = read_credentials(config).await?;
    let servers: Vec<String> = config.servers().map(str::to_owned).collect();
    let started = Instant::now();
    let attempt_timeout = Duration::from_millis(config.connect_timeout_ms);
    let end = started + Duration::from_millis(config.connect_retry_ms);
    let mut attempt = 0;
    loop {
        let options = options(config, credentials.as_deref(), signals)?;
        // The library bounds each server's handshake; this bounds all of it.
        let bound = attempt_timeout.saturating_mul(servers.len().max(1) as u32) + Duration::from_secs(1);
        let reason = match tokio::time::timeout(bound, options.connect(&servers)).await {
            Ok(Ok(client)) => return Ok(client),
            Ok(Err(error)) => match error.kind() {
                ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                    return Err(ConnectError::Refused { servers: config.servers_shown() });
                }
                ConnectErrorKind::ServerParse => {
                    return Err(ConnectError::Config("url is not a server address".to_owned()));
                }
                ConnectErrorKind::Tls => {
                    return Err(ConnectError::Tls { servers: config.servers_shown(), reason: describe(&error) });
                }
                ConnectErrorKind::Dns
                | ConnectErrorKind::TimedOut
                | ConnectErrorKind::Io
                | ConnectErrorKind::MaxReconnects => describe(&error),
            },
            Err(_) => "timed out".to_owned(),
        };
        attempt += 1;
        let pause = reconnect_delay(config, attempt);
        if Instant::now() + pause >= end {
            return Err(ConnectError::Unreachable {
                servers: config.servers_shown(),
                within_ms: started.elapsed().as_millis() as u64,
                reason,
            });
        }
        tracing::debug!(attempt, reason, "nats is not reachable yet");
        tokio::time::sleep(pause).await;
    }
}

fn options(
    config: &NatsConfig,
    credentials: Option<&str>,
    signals: &Arc<Signals>,
) -> Result<ConnectOptions, ConnectError> {
    let listener = signals.clone();
    let pace = config.clone();
    let mut options = ConnectOptions::new()
        .name(&config.name)
        .connection_timeout(Duration::from_millis(config.connect_timeout_ms))
        .request_timeout(Some(config.request_timeout()))
        .ping_interval(Duration::from_millis(config.ping_interval_ms))
        .reconnect_delay_callback(move |attempts| reconnect_delay(&pace, attempts))
        .event_callback(move |event| {
            listener.hear(event);
            std::future::ready(())
        });
    if let Some(prefix) = &config.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    if let (Some(user), Some(password)) = (&config.user, &config.password) {
        options = options.user_and_password(user.clone(), password.expose().to_owned());
    }
    let elsewhere = config.user.is_some() || config.token.is_some() || credentials.is_some();
    // The client library reads what an address carries and does not use it.
    if let Some((user, password)) = config.servers().find_map(user_info).filter(|_| !elsewhere) {
        options = match password {
            Some(password) => options.user_and_password(user, password),
            None => options.token(user),
        };
    }
    if let Some(token) = &config.token {
        options = options.token(token.expose().to_owned());
    }
    if let Some(credentials) = credentials {
        // Its error would quote the content.
        options = options
            .credentials(credentials)
            .map_err(|_| ConnectError::Config("credentials hold no JWT and key".to_owned()))?;
    }
    if config.tls.required {
        options = options.require_tls(true);
    }
    if config.tls.first {
        options = options.tls_first();
    }
    if let Some(path) = &config.tls.ca_file {
        options = options.add_root_certificates(path.clone());
    }
    if let (Some(cert), Some(key)) = (&config.tls.cert_file, &config.tls.key_file) {
        options = options.add_client_certificate(cert.clone(), key.clone());
    }
    Ok(options)
}

/// User and password of an address such as `nats://user:password@host`, or a token alone; percent encoding undone.
fn user_info(server: &str) -> Option<(String, Option<String>)> {
    let address: ServerAddr = server.parse().ok()?;
    let decode = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    Some((decode(address.username()?), address.password().map(decode)))
}

async fn read_credentials(config: &NatsConfig) -> Result<Option<String>, ConnectError> {
    if let Some(secret) = &config.credentials {
        return Ok(Some(secret.expose().to_owned()));
    }
    match &config.credentials_file {
        None => Ok(None),
        Some(path) => match tokio::fs::read_to_string(path).await {
            Ok(text) => Ok(Some(text)),
            Err(error) => Err(ConnectError::Config(format!("credentialsFile {}: {error}", path.display()))),
        },
    }
}

/// Doubles from attempt to attempt and is never the same for two clients that lost one server.
fn reconnect_delay(config: &NatsConfig, attempts: usize) -> Duration {
    let doublings = attempts.saturating_sub(1).min(16) as u32;
    let full = config.reconnect_min_ms.saturating_mul(1 << doublings).min(config.reconnect_max_ms);
    Duration::from_millis(rand::rng().random_range(full / 2..=full))
}

/// The error and its cause. The library names addresses in neither.
fn describe(error: &async_nats::ConnectError) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{}: {source}", error.kind()),
        None => error.kind().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_of_an_address_are_used() {
        let some = |user: &str, password: Option<&str>| Some((user.to_owned(), password.map(str::to_owned)));
        assert_eq!(user_info("nats://ditto:p%40ss%3Aw@host:4222"), some("ditto", Some("p@ss:w")));
        assert_eq!(user_info("nats://secret@host"), some("secret", None));
        assert_eq!(user_info("nats://host:4222"), None);
        assert_eq!(user_info("host"), None);
    }
}
