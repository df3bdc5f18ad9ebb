//! Progress of a run as lines on stderr: one per finished task, and a summary.

use std::{collections::HashMap, io::Write as _};

use ditto_contracts::Json;

use crate::term::{Paint, Tone, clean, shorten, span, status_tone};

/// Tasks that may be unfinished at once and still be timed.
const OPEN_MAX: usize = 100_000;
/// Least width of the task and node columns.
const TASK_WIDTH: usize = 20;
const NODE_WIDTH: usize = 22;

/// What was seen of one run so far.
#[derive(Debug)]
pub(crate) struct Progress {
    paint: Paint,
    quiet: bool,
    task_width: usize,
    open: HashMap<String, (String, i64)>,
    iterations: u64,
    tasks: u64,
    bad: u64,
}

impl Progress {
    /// Nothing seen yet. `quiet`: count only.
    pub(crate) fn new(paint: Paint, quiet: bool) -> Self {
        Self { paint, quiet, task_width: TASK_WIDTH, open: HashMap::new(), iterations: 0, tasks: 0, bad: 0 }
    }

    /// Takes the entries of one version of the run, written at this time.
    pub(crate) fn take(&mut self, at_ms: i64, entries: &Json) {
        let mut lines = String::new();
        for entry in entries.elements() {
            let text = |name: &str| entry.field(name).and_then(|value| value.to_text()).unwrap_or_default();
            match text("event").as_str() {
                "iteration" => self.iterations += 1,
                "started" if self.open.len() < OPEN_MAX => drop(self.open.insert(text("task"), (text("node"), at_ms))),
                "done" => lines.push_str(&self.done(&text("task"), &text("status"), &text("code"), at_ms)),
                _ => {}
            }
        }
        if !self.quiet && !lines.is_empty() {
            let _ = std::io::stderr().lock().write_all(lines.as_bytes()); // nobody reads stderr: nothing to say it to
        }
    }

    fn done(&mut self, task: &str, status: &str, code: &str, at_ms: i64) -> String {
        let (node, started_ms) = self.open.remove(task).unwrap_or_default();
        self.tasks += 1;
        if matches!(status, "failed" | "unknown") {
            self.bad += 1;
        }
        let task = shorten(&clean(task), 60);
        self.task_width = self.task_width.max(task.chars().count());
        let took = if node.is_empty() { String::new() } else { span(at_ms - started_ms) };
        let status = clean(status);
        let pad = " ".repeat(11_usize.saturating_sub(status.chars().count()));
        let line = format!(
            "  {task:width$}  {node}  {status}{pad} {took:>9}{code}",
            width = self.task_width,
            node = self.paint.paint(Tone::Dim, &format!("{node:NODE_WIDTH$}")),
            status = self.paint.paint(status_tone(&status), &status),
            code = if code.is_empty() {
                String::new()
            } else {
                format!("  {}", self.paint.paint(Tone::Bad, &clean(code)))
            },
        );
        format!("{}\n", line.trim_end())
    }

    /// `2 iterations, 6 tasks, 1 not well`.
    pub(crate) fn summary(&self) -> String {
        let count = |n: u64, one: &str| if n == 1 { format!("1 {one}") } else { format!("{n} {one}s") };
        let mut text = format!("{}, {}", count(self.iterations, "iteration"), count(self.tasks, "task"));
        if self.bad > 0 {
            text.push_str(&format!(", {} failed or unknown", self.bad));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_are_counted_and_shown_with_their_time() {
        let mut progress = Progress::new(Paint::plain(), true);
        let json = |text: &str| Json::parse(text.as_bytes().to_vec()).unwrap();
        progress.take(
            1_000,
            &json(
                r#"[{"event":"iteration","iteration":0,"graph":"g"},{"event":"started","task":"0/read","node":"A.B"}]"#,
            ),
        );
        assert_eq!(progress.open.len(), 1);
        let line = progress.done("0/read", "failed", "NO", 1_250);
        assert_eq!(line, "  0/read                A.B                     failed         250 ms  NO\n");
        assert_eq!(progress.summary(), "1 iteration, 1 task, 1 failed or unknown");
        assert_eq!(progress.open.len(), 0);
    }
}
