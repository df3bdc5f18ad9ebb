//! What every command gets: where the configuration is, how to print.

use std::path::PathBuf;

use ditto_runtime::config::{self, ConfigTree};
use serde::Serialize;

use crate::{
    args::Global,
    exit::{Exit, Failure},
    term::{Paint, Tone},
};

/// The surroundings of one command.
#[derive(Debug, Clone)]
pub struct Context {
    /// Print for machines.
    pub(crate) json: bool,
    config: Option<PathBuf>,
    /// How stdout is painted.
    pub(crate) out: Paint,
    /// How stderr is painted.
    pub(crate) err: Paint,
}

impl Context {
    /// From the options that every command has.
    pub fn new(global: &Global) -> Self {
        Self { json: global.json, config: global.config.clone(), out: Paint::stdout(), err: Paint::stderr() }
    }

    /// Reads `ditto.yaml` and the environment.
    ///
    /// # Errors
    /// All that is wrong with the file as a whole.
    pub(crate) fn config(&self) -> Result<ConfigTree, Failure> {
        let file = config::find_file(self.config.clone());
        let variables =
            std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        Ok(config::load(file.as_deref(), variables)?)
    }

    /// Says on stderr why a command failed.
    pub fn report(&self, failure: &Failure) {
        if self.json {
            let error = serde_json::json!({
                "error": { "code": failure.code, "message": failure.message, "hint": failure.hint, "exit": failure.exit as u8 }
            });
            eprintln!("{error}");
            return;
        }
        eprintln!("{} {}", self.err.paint(Tone::Bad, "error:"), crate::term::lines(&failure.message));
        if let Some(hint) = &failure.hint {
            eprintln!("{} {}", self.err.paint(Tone::Note, " hint:"), crate::term::lines(hint));
        }
    }

    /// Prints one JSON document on stdout.
    ///
    /// # Errors
    /// It cannot be written, as when the reader has gone.
    pub(crate) fn print_json(&self, value: &impl Serialize) -> Result<Exit, Failure> {
        let text = serde_json::to_string(value).map_err(|error| Failure::internal(error.to_string()))?;
        self.print(&text)
    }

    /// Prints lines on stdout.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn print(&self, text: &str) -> Result<Exit, Failure> {
        use std::io::Write as _;
        let mut out = std::io::stdout().lock();
        let line_end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
        match out
            .write_all(text.as_bytes())
            .and_then(|()| out.write_all(line_end.as_bytes()))
            .and_then(|()| out.flush())
        {
            Ok(()) => Ok(Exit::Completed),
            // `ditto … | head` is no failure.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(Exit::Completed),
            Err(error) => Err(Failure::internal(format!("stdout: {error}"))),
        }
    }

    /// A note for people on stderr; nothing when machines read.
    pub(crate) fn note(&self, text: &str) {
        use std::io::Write as _;
        if !self.json {
            let _ = writeln!(std::io::stderr(), "{text}"); // nobody reads stderr: nothing to say it to
        }
    }
}
