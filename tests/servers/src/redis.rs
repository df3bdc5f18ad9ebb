//! A private Redis that writes every change to its append-only file.

use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::OnceCell;

use crate::process::Process;
use crate::{binary, port};

/// Names a Redis that already runs.
const URL: &str = "DITTO_TEST_REDIS_URL";
/// The longest answer that is read.
const MAX_REPLY: usize = 16 << 20;

static SHARED: OnceCell<Shared> = OnceCell::const_new();

enum Shared {
    Given(String),
    Started(Redis),
}

/// A running Redis that belongs to this guard. Dropped: server and data are gone.
#[derive(Debug)]
pub struct Redis {
    process: Process,
    port: u16,
    binary: PathBuf,
}

impl Redis {
    /// Starts a private server: append-only file on, flushed to disk before each answer.
    ///
    /// # Errors
    /// When `redis-server` is not installed or does not start, with the end of its log.
    pub async fn start() -> Result<Self> {
        let binary = binary::find("redis-server", URL)?;
        let server = Self { process: Process::new("redis", "KILL", None)?, port: port::free()?, binary };
        server.restart().await?;
        Ok(server)
    }

    /// Where clients connect. The same before and after a restart.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Sends one command on a connection of its own. A simple, integer or bulk answer as text, `None` for nil.
    ///
    /// # Errors
    /// When the server does not answer, answers an error, or answers an array.
    pub async fn command(&self, words: &[&str]) -> Result<Option<String>> {
        command(self.port, words).await
    }

    /// Kills the server with `SIGKILL`. Everything it confirmed is there after [`restart`](Self::restart).
    ///
    /// # Errors
    /// When the process does not go away.
    pub fn kill9(&self) -> Result<()> {
        self.process.kill9()
    }

    /// Stops the server as an administrator would.
    ///
    /// # Errors
    /// When it has not stopped after 10 s.
    pub fn stop(&self) -> Result<()> {
        self.process.end("TERM")
    }

    /// Starts the server again with the same data on the same port, killing it first if it runs; returns once it
    /// answers.
    ///
    /// # Errors
    /// When it does not start, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        self.process.kill9()?;
        let port = self.port.to_string();
        #[rustfmt::skip]
        let arguments = [
            "--port", &port, "--bind", "127.0.0.1", "--daemonize", "no",
            "--save", "", "--appendonly", "yes", "--appendfsync", "always", "--dir", ".",
        ];
        self.process.spawn(&self.binary, &arguments.map(str::to_owned))?;
        let probe = || async {
            ensure!(self.command(&["PING"]).await?.as_deref() == Some("PONG"), "Redis did not say PONG");
            Ok(())
        };
        self.process.ready(probe).await
    }

    /// Kills the server, deletes its data and starts it again on the same port.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub async fn wipe_and_restart(&self) -> Result<()> {
        self.process.kill9()?;
        let data = self.process.dir().join("appendonlydir");
        if data.exists() {
            fs::remove_dir_all(&data).context("cannot delete the data of Redis")?;
        }
        // Before Redis 7 the append-only log was one file.
        let _ = fs::remove_file(self.process.dir().join("appendonly.aof"));
        self.restart().await
    }

    /// Stops the server with `SIGSTOP`: connections stay open and nothing answers.
    ///
    /// # Errors
    /// When the server is not running.
    pub fn pause(&self) -> Result<()> {
        self.process.pause()
    }

    /// Lets a paused server go on.
    ///
    /// # Errors
    /// When the signal cannot be sent.
    pub fn resume(&self) -> Result<()> {
        self.process.resume()
    }

    /// The server's own directory, with data and log; it goes with the guard.
    pub fn dir(&self) -> &Path {
        self.process.dir()
    }

    /// The id of the server process, `None` while it is down.
    pub fn pid(&self) -> Option<u32> {
        self.process.pid()
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        self.process.log_tail()
    }

    /// The server that tests of this process share: the one named by `DITTO_TEST_REDIS_URL`, else a private one. A
    /// test keeps to a key prefix of its own.
    ///
    /// # Errors
    /// When none is named and none can be started.
    pub async fn shared_url() -> Result<String> {
        let shared = SHARED
            .get_or_try_init(|| async {
                match env::var(URL) {
                    Ok(url) if !url.is_empty() => Ok(Shared::Given(url)),
                    _ => Redis::start().await.map(Shared::Started),
                }
            })
            .await?;
        Ok(match shared {
            Shared::Given(url) => url.clone(),
            Shared::Started(server) => server.url(),
        })
    }
}

async fn command(port: u16, words: &[&str]) -> Result<Option<String>> {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.context("cannot connect to Redis")?;
    let mut stream = BufReader::new(stream);
    let mut request = format!("*{}\r\n", words.len());
    for word in words {
        request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    stream.write_all(request.as_bytes()).await.context("cannot send a command to Redis")?;
    let mut line = String::new();
    ensure!(stream.read_line(&mut line).await.context("Redis closed the connection")? > 0, "Redis said nothing");
    let line = line.trim_end();
    match line.split_at_checked(1) {
        Some(("+" | ":", text)) => Ok(Some(text.to_owned())),
        Some(("-", text)) => bail!("Redis: {text}"),
        Some(("$", "-1")) => Ok(None),
        Some(("$", size)) => {
            let size: usize = size.parse().context("Redis sent an answer of impossible size")?;
            ensure!(size <= MAX_REPLY, "Redis sent {size} bytes");
            let mut text = vec![0; size];
            stream.read_exact(&mut text).await.context("Redis closed the connection")?;
            Ok(Some(String::from_utf8_lossy(&text).into_owned()))
        }
        _ => bail!("Redis sent an answer of another kind: {line}"),
    }
}
