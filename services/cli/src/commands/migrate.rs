//! `ditto migrate`: brings the ledger's schema up to date.

use clap::Args;

use crate::{
    context::Context,
    exit::{Exit, Failure},
    open_ledger::Ledger,
    settings,
    term::Tone,
};

/// Options of `ditto migrate`.
#[derive(Debug, Args)]
#[command(after_help = "\
Coordinators do this themselves when they start, and several may do it at once. Run it alone when the coordinators' role \
may not change the schema.

Example:
  DITTO_LEDGER_URL=postgres://owner:secret@db/ditto ditto migrate")]
pub struct MigrateArgs {
    /// Ledger, postgres:// or sqlite:; wins over ledger.url. Prefer DITTO_LEDGER_URL for one with a password
    #[arg(long, value_name = "URL")]
    ledger: Option<String>,
}

pub(super) async fn run(args: MigrateArgs, context: &Context) -> Result<Exit, Failure> {
    let mut config = settings::ledger_alone(&context.config()?)?;
    if let Some(url) = args.ledger {
        config.url = Some(url);
        config.password = None;
    }
    let ledger = Ledger::open(&config).await?;
    let described = ledger.store().describe().await;
    ledger.close().await;
    let described = described?;
    if context.json {
        let map: serde_json::Map<_, _> = described.into_iter().map(|(name, value)| (name, value.into())).collect();
        return context.print_json(&serde_json::json!({ "migrated": true, "ledger": map }));
    }
    let rows: Vec<_> = described.iter().map(|(name, value)| (name.as_str(), crate::term::clean(value))).collect();
    context.print(&format!(
        "{}\n{}",
        context.out.paint(Tone::Good, "the ledger is up to date"),
        crate::show::fields(context.out, &rows)
    ))
}
