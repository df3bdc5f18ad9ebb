//! What a database error means for the caller: by SQLSTATE and SQLite result code, never by text.

use std::fmt;

use sqlx::postgres::PgDatabaseError;
use sqlx::sqlite::SqliteError;

/// What to do about a database error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DbFailure {
    /// The database cannot be reached or is going down: repeat later. What was sent may or may not have been done.
    Unavailable,
    /// It took too long: a statement, a lock, or waiting for a connection. Repeat later.
    Timeout,
    /// Another transaction was in the way (serialization, deadlock, a busy file). Nothing was done: repeat.
    Conflict,
    /// A constraint refused the data. Repeating gives the same.
    Constraint {
        /// Name of the constraint or unique index; SQLite does not tell it.
        name: Option<String>,
    },
    /// A value that cannot be stored or read: too large, a NUL in a text, the wrong type. Repeating gives the same.
    BadData,
    /// No room left. Nothing was done; repeating helps after an operator made room.
    Full,
    /// The database does not accept writes, as a standby after a failover. Repeat on a new connection.
    ReadOnly,
    /// Anything else: wrong credentials, a missing table, a corrupt file, a defect here.
    Other,
}

impl DbFailure {
    /// Whether the same call may succeed later without anything being changed in it.
    pub const fn repeat(&self) -> bool {
        matches!(self, Self::Unavailable | Self::Timeout | Self::Conflict | Self::Full | Self::ReadOnly)
    }

    /// Whether it is certain that nothing was stored. `false` after a lost connection: read back.
    ///
    /// An error of the commit itself is uncertain whenever this is `false`.
    pub const fn nothing_stored(&self) -> bool {
        !matches!(self, Self::Unavailable | Self::Timeout | Self::Other)
    }

    /// A short name, fit for a metric label.
    pub const fn label(&self) -> &'static str {
        match self {
            Self::Unavailable => "unavailable",
            Self::Timeout => "timeout",
            Self::Conflict => "conflict",
            Self::Constraint { .. } => "constraint",
            Self::BadData => "bad_data",
            Self::Full => "full",
            Self::ReadOnly => "read_only",
            Self::Other => "other",
        }
    }
}

/// What this error means.
pub fn classify(error: &sqlx::Error) -> DbFailure {
    match error {
        sqlx::Error::Database(database) => {
            if let Some(postgres) = database.try_downcast_ref::<PgDatabaseError>() {
                by_sqlstate(postgres.code(), postgres.constraint())
            } else if database.try_downcast_ref::<SqliteError>().is_some() {
                by_sqlite_code(database.code().and_then(|code| code.parse().ok()).unwrap_or_default())
            } else {
                DbFailure::Other
            }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed
        | sqlx::Error::BeginFailed => DbFailure::Unavailable,
        sqlx::Error::PoolTimedOut => DbFailure::Timeout,
        sqlx::Error::Encode(_) | sqlx::Error::Decode(_) | sqlx::Error::ColumnDecode { .. } => DbFailure::BadData,
        _ => DbFailure::Other,
    }
}

fn by_sqlstate(code: &str, constraint: Option<&str>) -> DbFailure {
    match code {
        // deadlock, serialization
        "40001" | "40P01" => DbFailure::Conflict,
        // statement or lock timeout; a transaction that was idle too long
        "57014" | "55P03" | "25P03" | "25P04" => DbFailure::Timeout,
        // shutdown, crash, starting up, session ended; too many connections; completion unknown; no such database yet
        "57P01" | "57P02" | "57P03" | "57P05" | "53300" | "40003" => DbFailure::Unavailable,
        "25006" => DbFailure::ReadOnly,
        // a limit of the server itself, as with too many columns or too deep a statement
        _ if code.starts_with("54") => DbFailure::BadData,
        _ if code.starts_with("08") || code.starts_with("58") => DbFailure::Unavailable,
        _ if code.starts_with("53") => DbFailure::Full,
        _ if code.starts_with("23") => DbFailure::Constraint { name: constraint.map(str::to_owned) },
        _ if code.starts_with("22") => DbFailure::BadData,
        _ => DbFailure::Other,
    }
}

fn by_sqlite_code(extended: i32) -> DbFailure {
    // The low byte is the kind, the rest a detail: https://www.sqlite.org/rescode.html
    match extended & 0xff {
        5 | 6 => DbFailure::Conflict,               // BUSY, LOCKED
        7 | 13 => DbFailure::Full,                  // NOMEM, FULL
        8 => DbFailure::ReadOnly,                   // READONLY
        9 => DbFailure::Timeout,                    // INTERRUPT
        10 | 14 => DbFailure::Unavailable,          // IOERR, CANTOPEN
        18 | 20 | 25 => DbFailure::BadData,         // TOOBIG, MISMATCH, RANGE
        19 => DbFailure::Constraint { name: None }, // CONSTRAINT
        _ => DbFailure::Other,
    }
}

/// Longest part of a server's own message that is shown.
const MAX_MESSAGE_CHARS: usize = 300;

/// The error for logs and users: its code, constraint and message, without address, credentials or row values.
///
/// (A server's `DETAIL` repeats row values and is left out; so is whatever was wrong with an address.)
pub fn redacted(error: &sqlx::Error) -> impl fmt::Display + '_ {
    Redacted(error)
}

struct Redacted<'a>(&'a sqlx::Error);

impl fmt::Display for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            sqlx::Error::Database(database) => {
                let message: String = database.message().chars().take(MAX_MESSAGE_CHARS).collect();
                write!(f, "{message}")?;
                if let Some(code) = database.code() {
                    write!(f, " (code {code}")?;
                    if let Some(constraint) = database.constraint() {
                        write!(f, ", constraint {constraint}")?;
                    }
                    f.write_str(")")?;
                }
                Ok(())
            }
            sqlx::Error::Configuration(_) => f.write_str("the address or an option in it is not valid"),
            sqlx::Error::Io(error) => write!(f, "the connection failed: {}", error.kind()),
            other => write!(f, "{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlstates_mean_what_the_table_says() {
        let constraint = |name: &str| DbFailure::Constraint { name: Some(name.to_owned()) };
        #[rustfmt::skip]
        let table = [
            ("40001", DbFailure::Conflict),
            ("40P01", DbFailure::Conflict),
            ("57014", DbFailure::Timeout),
            ("55P03", DbFailure::Timeout),
            ("57P01", DbFailure::Unavailable),
            ("57P03", DbFailure::Unavailable),
            ("08006", DbFailure::Unavailable),
            ("53300", DbFailure::Unavailable),
            ("53100", DbFailure::Full),
            ("25006", DbFailure::ReadOnly),
            ("23505", constraint("receipts_pkey")),
            ("23503", constraint("receipts_pkey")),
            ("22021", DbFailure::BadData),          // a NUL in a text
            ("22003", DbFailure::BadData),
            ("54000", DbFailure::BadData),
            ("28P01", DbFailure::Other),            // wrong password
            ("42P01", DbFailure::Other),            // no such table
            ("",      DbFailure::Other),
        ];
        for (code, failure) in table {
            assert_eq!(by_sqlstate(code, Some("receipts_pkey")), failure, "{code}");
        }
    }

    #[test]
    fn sqlite_codes_mean_what_the_table_says() {
        #[rustfmt::skip]
        let table = [
            (5,    DbFailure::Conflict),
            (517,  DbFailure::Conflict),                    // BUSY_SNAPSHOT
            (13,   DbFailure::Full),
            (8,    DbFailure::ReadOnly),
            (1032, DbFailure::ReadOnly),                    // READONLY_DBMOVED
            (778,  DbFailure::Unavailable),                 // IOERR_WRITE
            (2067, DbFailure::Constraint { name: None }),   // CONSTRAINT_UNIQUE
            (20,   DbFailure::BadData),
            (11,   DbFailure::Other),                       // CORRUPT
            (0,    DbFailure::Other),
        ];
        for (code, failure) in table {
            assert_eq!(by_sqlite_code(code), failure, "{code}");
        }
    }

    #[test]
    fn an_address_is_never_part_of_an_error() {
        let error = sqlx::Error::Configuration("postgres://u:hunter2@h: bad port".into());
        assert!(!redacted(&error).to_string().contains("hunter2"));
    }
}
