//! How to reach NATS and how long to wait for it.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};

use super::ConnectError;

/// Name under which a secret asks the configuration reader for its value.
const SECRET: &str = "$ditto::Secret";
const REDACTED: &str = "**redacted**";

/// A value that prints as `**redacted**`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a value.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// The value itself. Hand it to the client library and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Secret;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a secret by reference: `{ env: NAME }` or `{ file: path }`")
            }
            // Only the configuration reader answers with a text, after it resolved the reference.
            fn visit_str<E: de::Error>(self, value: &str) -> Result<Secret, E> {
                Ok(Secret::new(value))
            }
            // Any other format would hand over what is written there: an inline secret.
            fn visit_newtype_struct<D: Deserializer<'de>>(self, _: D) -> Result<Secret, D::Error> {
                Err(de::Error::custom("a secret is read by the configuration only"))
            }
        }
        deserializer.deserialize_newtype_struct(SECRET, Text)
    }
}

/// `nats` in `ditto.yaml`.
#[derive(Clone, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NatsConfig {
    /// Server, or several separated by commas.
    pub url: String,
    /// Name of this client in the server's lists.
    pub name: String,
    /// User, with `password`.
    pub user: Option<String>,
    /// Password of `user`.
    pub password: Option<Secret>,
    /// Token, instead of a user.
    pub token: Option<Secret>,
    /// Content of a credentials file (JWT and key), instead of a user.
    pub credentials: Option<Secret>,
    /// Path of a credentials file, instead of a user.
    pub credentials_file: Option<PathBuf>,
    /// TLS.
    pub tls: NatsTls,
    /// Prefix of reply subjects, where rights give each role its own; `_INBOX` by default.
    pub inbox_prefix: Option<String>,
    /// Longest wait for one connection attempt (milliseconds, 100 to 60000).
    pub connect_timeout_ms: u64,
    /// How long the first connection is tried before it is an error (milliseconds, 0 for one attempt only, up to
    /// 600000).
    pub connect_retry_ms: u64,
    /// Between signs of life (milliseconds, 500 to 5000); a silent server is given up after about three.
    pub ping_interval_ms: u64,
    /// Longest wait for a confirmation, a flush or a stream operation (milliseconds, 100 to 30000).
    pub request_timeout_ms: u64,
    /// Pause before the first reconnect (milliseconds, 10 to 10000); doubles up to `reconnectMaxMs`, with jitter.
    pub reconnect_min_ms: u64,
    /// Longest pause between reconnects (milliseconds, up to 60000).
    pub reconnect_max_ms: u64,
    /// Listen for messages that used up their deliveries; needs the right to subscribe to
    /// `$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.>`.
    pub advisories: bool,
}

/// `nats.tls` in `ditto.yaml`. TLS is also used when the server or a `tls://` address asks for it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NatsTls {
    /// Refuse to talk without TLS.
    pub required: bool,
    /// Start TLS before the server's greeting.
    pub first: bool,
    /// Certificate authorities to trust instead of the system's (PEM).
    pub ca_file: Option<PathBuf>,
    /// Client certificate (PEM), with `keyFile`.
    pub cert_file: Option<PathBuf>,
    /// Key of the client certificate (PEM).
    pub key_file: Option<PathBuf>,
}

impl Default for NatsConfig {
    fn default() -> Self {
        Self {
            url: "nats://127.0.0.1:4222".to_owned(),
            name: "ditto".to_owned(),
            user: None,
            password: None,
            token: None,
            credentials: None,
            credentials_file: None,
            tls: NatsTls::default(),
            inbox_prefix: None,
            connect_timeout_ms: 5_000,
            connect_retry_ms: 0,
            ping_interval_ms: 3_000,
            request_timeout_ms: 2_000,
            reconnect_min_ms: 50,
            reconnect_max_ms: 2_000,
            advisories: true,
        }
    }
}

impl fmt::Debug for NatsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NatsConfig")
            .field("servers", &self.servers_shown())
            .field("name", &self.name)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("token", &self.token)
            .field("credentials", &self.credentials)
            .field("credentials_file", &self.credentials_file)
            .field("tls", &self.tls)
            .field("inbox_prefix", &self.inbox_prefix)
            .field("request_timeout_ms", &self.request_timeout_ms)
            .finish_non_exhaustive()
    }
}

impl NatsConfig {
    /// A configuration for this server.
    pub fn for_url(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// Checks ranges and combinations.
    ///
    /// # Errors
    /// Names the field.
    pub fn validate(&self) -> Result<(), ConnectError> {
        let bad = |what: &str| Err(ConnectError::Config(what.to_owned()));
        if self.servers().next().is_none() {
            return bad("url is empty");
        }
        let within = |value: u64, low: u64, high: u64| (low..=high).contains(&value);
        if !within(self.connect_timeout_ms, 100, 60_000) {
            return bad("connectTimeoutMs must be 100 to 60000");
        }
        if self.connect_retry_ms > 600_000 {
            return bad("connectRetryMs must be at most 600000");
        }
        if !within(self.ping_interval_ms, 500, 5_000) {
            return bad("pingIntervalMs must be 500 to 5000");
        }
        if !within(self.request_timeout_ms, 100, 30_000) {
            return bad("requestTimeoutMs must be 100 to 30000");
        }
        if !within(self.reconnect_min_ms, 10, 10_000) {
            return bad("reconnectMinMs must be 10 to 10000");
        }
        if !within(self.reconnect_max_ms, self.reconnect_min_ms, 60_000) {
            return bad("reconnectMaxMs must be reconnectMinMs to 60000");
        }
        let ways =
            [self.user.is_some(), self.token.is_some(), self.credentials.is_some(), self.credentials_file.is_some()];
        if ways.iter().filter(|given| **given).count() > 1 {
            return bad("give one of user, token, credentials and credentialsFile");
        }
        if self.user.is_some() != self.password.is_some() {
            return bad("user and password belong together");
        }
        if self.tls.cert_file.is_some() != self.tls.key_file.is_some() {
            return bad("tls.certFile and tls.keyFile belong together");
        }
        if self.inbox_prefix.as_deref().is_some_and(|prefix| !crate::subject::is_subject(prefix)) {
            return bad("inboxPrefix is not a subject");
        }
        Ok(())
    }

    pub(super) fn servers(&self) -> impl Iterator<Item = &str> {
        self.url.split(',').map(str::trim).filter(|server| !server.is_empty())
    }

    /// The servers without what may be a credential.
    pub(super) fn servers_shown(&self) -> String {
        let shown: Vec<String> = self.servers().map(without_credentials).collect();
        shown.join(",")
    }

    pub(super) fn request_timeout(&self) -> Duration {
        Duration::from_millis(self.request_timeout_ms)
    }
}

fn without_credentials(server: &str) -> String {
    let (scheme, rest) = server.split_once("://").map_or(("", server), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_secret_is_printed() {
        let config = NatsConfig {
            url: "nats://joe:p%40ss@a:4222, tls://tokenvalue@b".to_owned(),
            user: Some("joe".to_owned()),
            password: Some(Secret::new("hunter2")),
            ..NatsConfig::default()
        };
        let shown = format!("{config:?}");
        assert!(shown.contains("nats://a:4222,tls://b"), "{shown}");
        for secret in ["hunter2", "p%40ss", "tokenvalue"] {
            assert!(!shown.contains(secret), "{shown}");
        }
    }

    #[test]
    fn the_default_is_valid_and_mistakes_are_named() {
        assert_eq!(NatsConfig::default().validate(), Ok(()));
        let broken = [
            (NatsConfig { url: " ,".to_owned(), ..NatsConfig::default() }, "url"),
            (NatsConfig { ping_interval_ms: 60_000, ..NatsConfig::default() }, "pingIntervalMs"),
            (NatsConfig { user: Some("u".to_owned()), ..NatsConfig::default() }, "password"),
            (NatsConfig { inbox_prefix: Some("a.>".to_owned()), ..NatsConfig::default() }, "inboxPrefix"),
        ];
        for (config, field) in broken {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn it_is_read_from_a_document() {
        let config: NatsConfig =
            serde_json::from_str(r#"{"url":"nats://x","tls":{"required":true},"requestTimeoutMs":500}"#).unwrap();
        assert!(config.tls.required && config.request_timeout_ms == 500);
        assert!(serde_json::from_str::<NatsConfig>(r#"{"urll":"x"}"#).is_err());
        assert!(serde_json::from_str::<NatsConfig>(r#"{"token":"inline"}"#).is_err());
    }
}
