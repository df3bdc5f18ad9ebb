//! How runs, receipts and progress look to people; shared by the commands.

use ditto_contracts::{Json, RunStatus};
use ditto_coordinator::api::views::{ReceiptView, RunView};

use crate::{
    exit::Exit,
    term::{Cell, Paint, Tone, clean, lines, shorten, span, status_tone, table, time},
};

/// Longest value of a field in a view for people, in characters. `--json` shows all of it.
const VALUE_MOST: usize = 600;

/// A list of names and values; the names dim and aligned.
pub(crate) fn fields(paint: Paint, rows: &[(&str, String)]) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for (name, value) in rows {
        let name = format!("{name:width$}");
        out.push_str(&format!("{}  {}\n", paint.paint(Tone::Dim, &name), value));
    }
    out
}

/// JSON for a person: on one line, without what steers a terminal, cut when long.
pub(crate) fn value(json: &Json) -> String {
    shorten(&clean(json.as_str()), VALUE_MOST)
}

/// A table of runs.
pub(crate) fn runs(paint: Paint, runs: &[RunView]) -> String {
    let rows: Vec<_> = runs
        .iter()
        .map(|run| {
            vec![
                Cell::new(run.run_id.as_str()),
                Cell::new(shorten(run.name.as_str(), 32)),
                Cell::status(run.status.as_str()),
                Cell::new(time(run.created_ms)),
                Cell::new(run.ended_ms.map_or_else(String::new, |ended| span(ended - run.created_ms))),
                Cell::toned(run.error.as_ref().map_or("", |error| error.code.as_str()), Tone::Bad),
            ]
        })
        .collect();
    table(paint, &["RUN", "NAME", "STATUS", "CREATED", "TOOK", "ERROR"], &rows, "no runs")
}

/// One run.
pub(crate) fn run(paint: Paint, run: &RunView) -> String {
    let mut rows = vec![
        ("run", run.run_id.to_string()),
        ("name", run.name.to_string()),
        ("revision", run.revision.to_string()),
        ("namespace", run.namespace.to_string()),
        ("status", paint.paint(status_tone(run.status.as_str()), run.status.as_str())),
    ];
    if let Some(key) = &run.key {
        rows.push(("key", clean(key.as_str())));
    }
    rows.push(("created", time(run.created_ms)));
    if let Some(ended) = run.ended_ms {
        rows.push(("ended", format!("{} after {}", time(ended), span(ended - run.created_ms))));
    }
    if let Some(wake) = run.wake_ms.filter(|_| run.ended_ms.is_none()) {
        rows.push(("wakes", time(wake)));
    }
    if let Some(deadline) = run.deadline_ms.filter(|_| run.ended_ms.is_none()) {
        rows.push(("deadline", time(deadline)));
    }
    if let Some(cancel) = run.cancel_ms {
        rows.push(("cancel", format!("asked for at {}", time(cancel))));
    }
    rows.push(("input", value(&run.input)));
    if let Some(output) = &run.output {
        rows.push(("output", value(output)));
    }
    if let Some(error) = &run.error {
        rows.push(("error", format!("{}: {}", error.code, lines(&error.message))));
    }
    fields(paint, &rows)
}

/// A table of receipts.
pub(crate) fn receipts(paint: Paint, receipts: &[ReceiptView], none: &str) -> String {
    let rows: Vec<_> = receipts
        .iter()
        .map(|receipt| {
            let settled = receipt.settled_ms.map_or_else(|| "open".to_owned(), |ms| span(ms - receipt.created_ms));
            let node = match &receipt.source {
                Some(source) => format!("{} {source}", receipt.node),
                None => receipt.node.to_string(),
            };
            vec![
                Cell::new(receipt.call.as_str()),
                Cell::new(shorten(&receipt.task, 32)),
                Cell::new(shorten(&node, 48)),
                Cell::new(receipt.class.as_str()),
                Cell::status(receipt.state.as_str()),
                Cell::new(receipt.attempts.to_string()),
                Cell::new(settled),
                Cell::toned(receipt.error.as_ref().map_or("", |error| error.code.as_str()), Tone::Bad),
            ]
        })
        .collect();
    table(paint, &["CALL", "TASK", "NODE", "CLASS", "STATE", "ATTEMPTS", "TOOK", "ERROR"], &rows, none)
}

/// The end of a run on stderr: its status, what was done, why, and what to do next.
pub(crate) fn ending(paint: Paint, run: &RunView, summary: &str) -> String {
    let status = run.status.as_str();
    let took = run.ended_ms.map_or_else(String::new, |ended| format!(" after {}", span(ended - run.created_ms)));
    let mut out = format!("{}{took}: {summary}", paint.paint(status_tone(status), status));
    if let Some(error) = &run.error {
        out.push_str(&format!("\n{} {}: {}", paint.paint(Tone::Bad, "error:"), error.code, lines(&error.message)));
    }
    if Exit::of_run(run.status, run.error.as_ref()) == Exit::Unknown {
        out.push_str(&format!("\n{} {}", paint.paint(Tone::Note, " hint:"), unknown_hint(run.run_id.as_str())));
    }
    if run.status == RunStatus::Cancelled {
        out.push_str(&format!(
            "\n{} cancelled does not mean undone: see `ditto runs show {}`",
            paint.paint(Tone::Note, " hint:"),
            run.run_id
        ));
    }
    out
}

/// What to do about an unknown outcome.
pub(crate) fn unknown_hint(run: &str) -> String {
    format!(
        "an effect may or may not have happened, and nothing is sent again; find out at the backend, then tell it a \
         server (`ditto dev` here): ditto receipts ls --run {run}; ditto receipts resolve CALL …"
    )
}
