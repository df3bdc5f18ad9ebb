//! Secrets and addresses that carry them: readable by the code that needs them, never printed.

use std::fmt;
use std::sync::Arc;

use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What is shown in place of a secret.
const REDACTED: &str = "**redacted**";

/// The name under which [`Secret`] asks the configuration reader for its value.
pub(super) const SECRET: &str = "$ditto::Secret";

/// A value that prints as `**redacted**` in every form: `Debug`, `Display`, serialised.
///
/// In configuration it comes from its environment variable, or from the file by reference: `{ env: NAME }` or
/// `{ file: path }` (relative to the folder of the configuration file; one trailing line break is dropped).
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Wraps a value that was obtained in another way than by configuration.
    pub fn new(value: impl Into<Arc<str>>) -> Self {
        Self(value.into())
    }

    /// The value itself. Hand it to the library that needs it and nowhere else.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(REDACTED)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(REDACTED)
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Resolved;
        impl<'de> Visitor<'de> for Resolved {
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
        deserializer.deserialize_newtype_struct(SECRET, Resolved)
    }
}

/// Query parameters and connection words whose value is not shown, as parts of their name.
const SENSITIVE: [&str; 6] = ["password", "passwd", "secret", "token", "key", "credential"];

/// The address without credentials, for logs and errors: `nats://user:pw@h` becomes `nats://**redacted**@h`.
///
/// Several addresses in one text (comma separated) and sensitive query parameters are handled too. In doubt it hides
/// more than needed: everything up to the last `@` of an address goes.
pub fn redact_url(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(scheme_end) = rest.find("://") {
        let authority = scheme_end + "://".len();
        shown.push_str(&redact_user(&rest[..authority], ""));
        let after = &rest[authority..];
        // This address ends where the scheme of the next one begins.
        let end = after.find("://").map_or(after.len(), |next| {
            after[..next]
                .rfind(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.')))
                .map_or(0, |at| at + 1)
        });
        shown.push_str(&redact_user("", &after[..end]));
        rest = &after[end..];
        if end == 0 {
            break;
        }
    }
    shown.push_str(&redact_user("", rest));
    redact_words(&shown)
}

/// Hides what stands before the last `@`; `lead` is put in front unchanged.
fn redact_user(lead: &str, address: &str) -> String {
    match address.rfind('@') {
        Some(at) => format!("{lead}{REDACTED}{}", &address[at..]),
        None => format!("{lead}{address}"),
    }
}

/// Hides the values of sensitive `name=value` pairs, in a query or in a list of connection words.
fn redact_words(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for word in text.split_inclusive(['?', '&', ' ', ';', '#']) {
        let body = word.trim_end_matches(['?', '&', ' ', ';', '#']);
        match body.split_once('=') {
            Some((name, _)) if SENSITIVE.iter().any(|part| name.to_ascii_lowercase().contains(part)) => {
                shown.push_str(name);
                shown.push('=');
                shown.push_str(REDACTED);
                shown.push_str(&word[body.len()..]);
            }
            _ => shown.push_str(word),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_as_redacted_in_every_form() {
        let secret = Secret::new("hunter2");
        assert_eq!(format!("{secret} {secret:?} {:#?}", Some(&secret)).matches("hunter2").count(), 0);
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"**redacted**\"");
        assert_eq!(secret.expose(), "hunter2");
        let refused = serde_json::from_str::<Secret>("\"hunter2\"").unwrap_err().to_string();
        assert!(!refused.contains("hunter2"), "{refused}");
    }

    #[test]
    fn addresses_lose_their_credentials_and_nothing_else() {
        #[rustfmt::skip]
        let table = [
            ("nats://user:pw@h",                     "nats://**redacted**@h"),
            ("nats://token@h:4222",                  "nats://**redacted**@h:4222"),
            ("nats://h:4222",                        "nats://h:4222"),
            ("postgres://u:p%40w@h:5432/db?sslmode=require", "postgres://**redacted**@h:5432/db?sslmode=require"),
            ("postgres://u:p@w@h/db",                "postgres://**redacted**@h/db"),
            ("postgres://u:p/w@h/db",                "postgres://**redacted**@h/db"),
            ("postgres://h/db?user=u&password=hunter2&x=1", "postgres://h/db?user=u&password=**redacted**&x=1"),
            ("nats://a:b@h1,nats://c:d@h2",          "nats://**redacted**@h1,nats://**redacted**@h2"),
            ("nats://a:b,c@h1,tls://h2",             "nats://**redacted**@h1,tls://h2"),
            ("user:pw@host",                         "**redacted**@host"),
            ("host=h password=hunter2 user=u",       "host=h password=**redacted** user=u"),
            ("sqlite://.ditto/ledger.db",            "sqlite://.ditto/ledger.db"),
            ("https://h/v1?api_key=abc#top",         "https://h/v1?api_key=**redacted**#top"),
            ("://",                                  "://"),
            ("a://://b",                             "a://://b"),
            ("",                                     ""),
        ];
        for (text, shown) in table {
            assert_eq!(redact_url(text), shown, "{text}");
        }
    }
}
