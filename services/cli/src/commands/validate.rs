//! `ditto validate`: every problem of every definition, with its line and a caret.

use std::path::PathBuf;

use clap::Args;

use crate::{
    context::Context,
    exit::{Exit, Failure},
    input,
    term::Tone,
};

/// Options of `ditto validate`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ditto validate examples/*.yaml\n  ditto validate --json my-loop.yaml | jq .")]
pub struct ValidateArgs {
    /// Definition files, YAML or JSON; - for stdin
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

pub(super) fn run(args: &ValidateArgs, context: &Context) -> Result<Exit, Failure> {
    let mut exit = Exit::Completed;
    let mut reports = Vec::new();
    let mut broken = 0_usize;
    for file in &args.files {
        let name = file.display().to_string();
        let source = match input::definition_text(file) {
            Ok(source) => source,
            Err(failure) => {
                (exit, broken) = (Exit::Usage, broken + 1);
                if context.json {
                    reports.push(serde_json::json!({ "file": name, "valid": false, "error": failure.message }));
                } else {
                    context.report(&failure);
                }
                continue;
            }
        };
        match ditto_definition::compile(&source, &name) {
            Ok(definition) => {
                if context.json {
                    reports.push(serde_json::json!({
                        "file": name, "valid": true, "name": definition.name, "revision": definition.revision,
                    }));
                } else {
                    let ok = context.out.paint(Tone::Good, "ok");
                    context.print(&format!(
                        "{ok}  {name}  {} {}",
                        definition.name,
                        short(definition.revision.as_str())
                    ))?;
                }
            }
            Err(problems) => {
                (exit, broken) = (Exit::Usage, broken + 1);
                if context.json {
                    reports.push(serde_json::json!({ "file": name, "valid": false, "problems": problems }));
                } else {
                    eprintln!("{}", crate::term::lines(&ditto_definition::render_all(&problems, &name, &source)));
                }
            }
        }
    }
    if context.json {
        context.print_json(&reports)?;
    } else if broken > 0 {
        let total = args.files.len();
        context.note(&context.err.paint(Tone::Bad, &format!("{broken} of {total} definitions cannot be used")));
    }
    Ok(exit)
}

/// The beginning of a revision, enough for people.
pub(super) fn short(revision: &str) -> &str {
    revision.get(..12).unwrap_or(revision)
}
