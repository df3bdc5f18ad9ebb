//! As much of PostgreSQL's protocol as tests need: connect without a password, send one text, read rows as text.

use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest message that is read; a test's answers are far smaller.
const MAX_MESSAGE: usize = 16 << 20;

/// One row: a text for each column, `None` for SQL's NULL.
pub(crate) type Row = Vec<Option<String>>;

/// Runs `sql` (one statement or several) on its own connection and returns all rows as text.
///
/// # Errors
/// When the server refuses the connection or the statement, with the server's own message.
pub(crate) async fn query(port: u16, user: &str, database: &str, sql: &str) -> Result<Vec<Row>> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.context("cannot connect to PostgreSQL")?;
    let mut startup = Vec::new();
    startup.extend_from_slice(&196_608_i32.to_be_bytes()); // protocol 3.0
    for word in ["user", user, "database", database, ""] {
        startup.extend_from_slice(word.as_bytes());
        startup.push(0);
    }
    stream.write_all(&framed(None, &startup)?).await.context("cannot greet PostgreSQL")?;
    read_until_ready(&mut stream).await?;
    let mut text = sql.as_bytes().to_vec();
    text.push(0);
    stream.write_all(&framed(Some(b'Q'), &text)?).await.context("cannot send a query to PostgreSQL")?;
    let rows = read_until_ready(&mut stream).await?;
    // A polite end keeps the server's log free of complaints; the answer is already here if it fails.
    let _ = stream.write_all(&framed(Some(b'X'), &[])?).await;
    Ok(rows)
}

fn framed(kind: Option<u8>, body: &[u8]) -> Result<Vec<u8>> {
    let length = i32::try_from(body.len() + 4).context("a message for PostgreSQL is too long")?;
    let mut message: Vec<u8> = kind.into_iter().collect();
    message.extend_from_slice(&length.to_be_bytes());
    message.extend_from_slice(body);
    Ok(message)
}

async fn read_until_ready(stream: &mut TcpStream) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut refused = None;
    loop {
        let kind = stream.read_u8().await.context("PostgreSQL closed the connection")?;
        let length = stream.read_i32().await.context("PostgreSQL closed the connection")?;
        let length =
            usize::try_from(length).ok().and_then(|length| length.checked_sub(4)).filter(|l| *l <= MAX_MESSAGE);
        let mut body = vec![0; length.context("PostgreSQL sent a message of impossible length")?];
        stream.read_exact(&mut body).await.context("PostgreSQL closed the connection")?;
        match kind {
            b'R' => ensure!(body.starts_with(&0_i32.to_be_bytes()), "PostgreSQL asks for a password"),
            b'D' => rows.push(row(&body).context("PostgreSQL sent a row that cannot be read")?),
            b'E' => {
                refused = Some(message_of(&body));
                // A refused connection is closed without a ready message.
                if message_severity(&body) == "FATAL" {
                    break;
                }
            }
            b'Z' => break,
            _ => {}
        }
    }
    match refused {
        Some(message) => bail!("PostgreSQL: {message}"),
        None => Ok(rows),
    }
}

fn row(body: &[u8]) -> Option<Row> {
    let (count, mut rest) = body.split_first_chunk::<2>()?;
    let mut columns = Vec::new();
    for _ in 0..u16::from_be_bytes(*count) {
        let (length, after) = rest.split_first_chunk::<4>()?;
        rest = after;
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else {
            columns.push(None);
            continue;
        };
        let (value, after) = rest.split_at_checked(length)?;
        columns.push(Some(String::from_utf8_lossy(value).into_owned()));
        rest = after;
    }
    Some(columns)
}

fn field(body: &[u8], name: u8) -> Option<String> {
    let mut fields = body.split(|byte| *byte == 0).filter_map(|field| field.split_first());
    fields.find(|(kind, _)| **kind == name).map(|(_, text)| String::from_utf8_lossy(text).into_owned())
}

fn message_of(body: &[u8]) -> String {
    field(body, b'M').unwrap_or_else(|| "error without a message".to_owned())
}

fn message_severity(body: &[u8]) -> String {
    field(body, b'V').or_else(|| field(body, b'S')).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_with_its_nulls() {
        let body = [&[0, 2][..], &[0, 0, 0, 2], b"ab", &(-1_i32).to_be_bytes()].concat();
        assert_eq!(row(&body), Some(vec![Some("ab".to_owned()), None]));
    }

    #[test]
    fn a_row_cut_short_is_none() {
        assert_eq!(row(&[0, 1, 0, 0, 0, 9, b'a']), None);
        assert_eq!(row(&[0]), None);
    }

    #[test]
    fn an_error_has_its_severity_and_message() {
        let body = b"SFATAL\0VFATAL\0C57P03\0Mthe database system is starting up\0\0";
        assert_eq!(message_of(body), "the database system is starting up");
        assert_eq!(message_severity(body), "FATAL");
    }
}
