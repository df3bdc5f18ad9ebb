//! `ditto submit`: gives work to a fleet, over HTTP or over NATS.

use std::path::Path;

use clap::{Args, ValueEnum};
use ditto_contracts::{
    LoopName, Revision, SubmitKey,
    wire::{SubmitBody, SubmitKind, SubmitReply},
};

use super::{definitions, runs};
use crate::{
    args::{ServerArgs, id},
    client::{Client, read},
    context::Context,
    exit::{Exit, Failure},
    input, nats_client, settings,
    term::Tone,
};

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// A registered loop
    Loop,
    /// A registered graph, executed once
    Graph,
    /// One node, executed once; the name is its node type
    Node,
}

impl From<Kind> for SubmitKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Loop => Self::Loop,
            Kind::Graph => Self::Graph,
            Kind::Node => Self::Node,
        }
    }
}

/// Options of `ditto submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
The answer comes after the run is durable. With --key it is safe to repeat: the same key is the same run for ever. \
A file is registered first, over the server's API.

Examples:
  ditto submit examples/read-and-deliver.yaml --input '{\"paths\":[\"README.md\"]}' --wait
  ditto submit read-and-deliver --input @input.json --key nightly-2026-11-30
  ditto submit INTERACTION.ACT.TOOL --kind node --input '{\"call\":{\"id\":\"1\",\"name\":\"read_text\",\"arguments\":{\"path\":\"README.md\"}}}' --wait
  ditto submit read-and-deliver --input '{\"paths\":[\"a\"]}' --nats nats://bus:4222")]
pub struct SubmitArgs {
    /// Name of a registered definition, a node type with --kind node, or a definition file
    #[arg(value_name = "NAME|FILE")]
    what: String,
    /// Input: JSON, @file, or - for stdin
    #[arg(long, short, value_name = "JSON|@FILE", default_value = "{}")]
    input: String,
    /// Set a member of the input; the value is JSON, @file, or else a text. Repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// What the name stands for
    #[arg(long, value_enum, default_value_t = Kind::Loop)]
    kind: Kind,
    /// Idempotency: the same key is the same run, for ever
    #[arg(long, short, value_parser = id::<SubmitKey>)]
    key: Option<SubmitKey>,
    /// Another revision than the newest
    #[arg(long, value_parser = id::<Revision>)]
    revision: Option<Revision>,
    /// Wait for the end; then print the result and exit as `ditto run` does
    #[arg(long, short)]
    wait: bool,
    /// Submit over this NATS server instead of HTTP
    #[arg(long, env = "DITTO_NATS_URL", value_name = "URL", hide_env_values = true)]
    nats: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

pub(super) async fn run(args: SubmitArgs, context: &Context) -> Result<Exit, Failure> {
    let client = Client::new(&args.server)?;
    let input = input::with_members(&input::json("--input", &args.input)?, &args.set)?;
    let (name, revision) = if is_file(&args.what, args.kind) {
        let definition = input::definition(Path::new(&args.what))?;
        definition.plan.check_input(&input).map_err(|problems| input::wrong_input(&problems))?;
        definitions::put(&client, definition.source).await?;
        (definition.name, Some(definition.revision))
    } else {
        let name = LoopName::new(&args.what).map_err(|error| Failure::usage(format!("NAME: {error}")))?;
        (name, args.revision)
    };
    let body = SubmitBody { key: args.key, input, revision };
    let reply = match args.nats.filter(|url| !url.is_empty()) {
        Some(url) => {
            let mut bus = settings::bus_alone(&context.config()?, "ditto-submit")?;
            bus.url = url;
            nats_client::submit(&bus, &args.server.namespace, args.kind.into(), &name, &body).await?
        }
        None => {
            let mut request = serde_json::json!({ "kind": SubmitKind::from(args.kind), "name": name });
            if let Some(key) = &body.key {
                request["key"] = key.as_str().into();
            }
            if let Some(revision) = &body.revision {
                request["revision"] = revision.as_str().into();
            }
            // The input goes as the bytes that were given.
            let mut text = request.to_string();
            text.pop();
            text.push_str(&format!(",\"input\":{}}}", body.input.as_str()));
            let reply: SubmitReply = read(&client.post(&["v1", "runs"], text).await?)?;
            reply
        }
    };
    if args.wait {
        let again = if reply.duplicate { "  (this key was used before: it is the same run)" } else { "" };
        context.note(&format!("{} {}{again}", context.err.paint(Tone::Strong, "run"), reply.run_id));
        return runs::follow_to_end(&client, reply.run_id.as_str(), context).await;
    }
    if context.json {
        return context.print_json(&reply);
    }
    if reply.duplicate {
        context.note("this key was used before: it is the same run");
    }
    context.print(reply.run_id.as_str())
}

/// A path that exists, or a name that can only be one.
fn is_file(what: &str, kind: Kind) -> bool {
    let extension = Path::new(what).extension().and_then(|extension| extension.to_str());
    kind != Kind::Node && (what.contains('/') || matches!(extension, Some("yaml" | "yml" | "json")))
}
