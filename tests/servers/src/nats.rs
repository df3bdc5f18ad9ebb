//! A private NATS server with JetStream, its streams in a temporary directory.

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

/// Names a NATS server that already runs, with JetStream on.
const URL: &str = "DITTO_TEST_NATS_URL";
/// Folder of the streams inside the server's directory.
const STORE: &str = "jetstream";

static SHARED: OnceCell<Shared> = OnceCell::const_new();

enum Shared {
    Given(String),
    Started(Nats),
}

/// What may differ from the server's defaults.
#[derive(Debug, Clone, Default)]
pub struct NatsOptions {
    /// Serve the monitoring endpoints (`/varz`, `/jsz`, …) on a second port.
    pub monitoring: bool,
    /// Further lines for the server's configuration file.
    pub config: String,
}

/// A running NATS server that belongs to this guard. Dropped: server and streams are gone.
#[derive(Debug)]
pub struct Nats {
    process: Process,
    port: u16,
    monitoring_port: Option<u16>,
    binary: PathBuf,
}

impl Nats {
    /// Starts a private server with the defaults of [`NatsOptions`].
    ///
    /// # Errors
    /// When `nats-server` is not installed or does not start.
    pub async fn start() -> Result<Self> {
        Self::start_with(NatsOptions::default()).await
    }

    /// Starts a private server.
    ///
    /// # Errors
    /// When `nats-server` is not installed or does not start, with the end of its log.
    pub async fn start_with(options: NatsOptions) -> Result<Self> {
        let binary = binary::find("nats-server", URL)?;
        let process = Process::new("nats", "KILL", None)?;
        let port = port::free()?;
        let monitoring_port = if options.monitoring { Some(port::free()?) } else { None };
        let monitoring = monitoring_port.map(|port| format!("http: \"127.0.0.1:{port}\"\n")).unwrap_or_default();
        let store = process.dir().join(STORE);
        let config = format!(
            "listen: \"127.0.0.1:{port}\"\n{monitoring}jetstream {{ store_dir: \"{}\" }}\n{}\n",
            store.display(),
            options.config
        );
        fs::write(process.dir().join("nats.conf"), config).context("cannot write the configuration of nats-server")?;
        let server = Self { process, port, monitoring_port, binary };
        server.restart().await?;
        Ok(server)
    }

    /// Where clients connect. The same before and after a restart.
    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }

    /// Where the monitoring endpoints are, when [`NatsOptions::monitoring`] asked for them.
    pub fn monitoring_url(&self) -> Option<String> {
        self.monitoring_port.map(|port| format!("http://127.0.0.1:{port}"))
    }

    /// The TCP port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server with `SIGKILL`. Streams on file are there after [`restart`](Self::restart).
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

    /// Starts the server again with the same streams on the same port, killing it first if it runs; returns once
    /// JetStream answers.
    ///
    /// # Errors
    /// When it does not start, with the end of its log.
    pub async fn restart(&self) -> Result<()> {
        self.process.kill9()?;
        self.process.spawn(&self.binary, &["-c".to_owned(), "nats.conf".to_owned()])?;
        self.process.ready(|| jetstream_answers(self.port)).await
    }

    /// Kills the server, deletes every stream and consumer, and starts it again on the same port.
    ///
    /// # Errors
    /// As [`restart`](Self::restart).
    pub async fn wipe_and_restart(&self) -> Result<()> {
        self.process.kill9()?;
        let store = self.process.dir().join(STORE);
        if store.exists() {
            fs::remove_dir_all(&store).context("cannot delete the streams")?;
        }
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

    /// The server's own directory, with configuration, streams and log; it goes with the guard.
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

    /// The server that tests of this process share: the one named by `DITTO_TEST_NATS_URL`, else a private one. Only
    /// for tests that use no stream and keep to subjects with names of their own.
    ///
    /// # Errors
    /// When none is named and none can be started.
    pub async fn shared_url() -> Result<String> {
        let shared = SHARED
            .get_or_try_init(|| async {
                match env::var(URL) {
                    Ok(url) if !url.is_empty() => Ok(Shared::Given(url)),
                    _ => Nats::start().await.map(Shared::Started),
                }
            })
            .await?;
        Ok(match shared {
            Shared::Given(url) => url.clone(),
            Shared::Started(server) => server.url(),
        })
    }
}

/// Asks JetStream for its account and waits for the answer: the port alone would say nothing about streams.
async fn jetstream_answers(port: u16) -> Result<()> {
    const ASK: &[u8] = b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\n\
        SUB _INBOX.ready 1\r\nPUB $JS.API.INFO _INBOX.ready 0\r\n\r\nPING\r\n";
    let mut stream =
        BufReader::new(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.context("cannot connect to NATS")?);
    stream.write_all(ASK).await.context("cannot ask NATS")?;
    // INFO, PONG and the answer come within the first lines.
    for _ in 0..16 {
        let mut line = String::new();
        ensure!(stream.read_line(&mut line).await.context("NATS closed the connection")? > 0, "NATS said nothing");
        if let Some(complaint) = line.strip_prefix("-ERR") {
            bail!("NATS: {}", complaint.trim());
        }
        if line.starts_with("MSG _INBOX.ready ") {
            let size = line.split_whitespace().last().and_then(|word| word.parse::<u16>().ok());
            let mut payload = vec![0; size.context("NATS sent a message without a size")?.into()];
            stream.read_exact(&mut payload).await.context("NATS closed the connection")?;
            let answer = String::from_utf8_lossy(&payload);
            ensure!(!answer.contains("\"error\""), "JetStream is not ready: {answer}");
            return Ok(());
        }
    }
    bail!("JetStream did not answer");
}
