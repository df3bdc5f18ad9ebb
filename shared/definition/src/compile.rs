//! From the text of a definition to a plan, or to every problem in it.

use std::sync::Arc;

use ditto_contracts::{Json, LoopName, Revision, TaskId};
use ditto_graph::{Formula, Plan, PureNodes, StateLoop, Wait};

use crate::{
    budget::Budgeted,
    canonical,
    diagnostic::{Diagnostic, Place},
    document::{self, Node, Value, join},
    duration::{DEADLINE_MS_MAX, is_time},
    expression::{Names, Root},
    reader::Reader,
    schema, stack,
    tasks::{self, CompiledGraph, EVERYTHING, GRAPH_INPUT},
    template::{Template, Yields, literal_text},
};

const KEYS: [&str; 16] = [
    "ditto",
    "loop",
    "description",
    "input",
    "state",
    "maxIterations",
    "maxCalls",
    "deadline",
    "concurrency",
    "graph",
    "graphs",
    "select",
    "update",
    "done",
    "wait",
    "output",
];
const WAIT_KEYS: [&str; 4] = ["when", "signal", "for", "until"];
/// Most iterations a definition may allow.
const ITERATIONS_MAX: u64 = 1_000_000;
/// Most calls a definition may set as its limit.
const CALLS_MAX: u64 = 1_000_000;
/// Most tasks of one graph in flight at once.
const CONCURRENCY_MAX: u64 = 4096;
/// Longest name of a signal, in bytes.
const SIGNAL_BYTES_MAX: usize = 128;
/// Problems that are returned; a definition with more is not what it claims to be.
const DIAGNOSTICS_MAX: usize = 200;

/// A registered definition.
#[derive(Clone)]
pub struct Definition {
    /// Its name.
    pub name: LoopName,
    /// Names its canonical form: equal revisions behave equally.
    pub revision: Revision,
    /// What it is for, in its own words.
    pub description: Option<String>,
    /// The program.
    pub plan: Arc<dyn Plan>,
    /// What is stored: compiling it gives the same revision.
    pub canonical: Json,
    /// The text it was read from.
    pub source: String,
}

impl std::fmt::Debug for Definition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Definition").field("name", &self.name).field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// Compiles a definition whose nodes are all calls. `source_name` is a file name: `.json` is read as JSON, anything
/// else as YAML unless it is a JSON object.
///
/// # Errors
/// Every problem, in the order of the text; at most 200.
pub fn compile(text: &str, source_name: &str) -> Result<Definition, Vec<Diagnostic>> {
    compile_with(text, source_name, Arc::new(PureNodes::new()))
}

/// Compiles a definition; nodes among `pure` are evaluated inside a decision.
///
/// # Errors
/// As [`compile`].
pub fn compile_with(text: &str, source_name: &str, pure: Arc<PureNodes>) -> Result<Definition, Vec<Diagnostic>> {
    let compiled = stack::with_room(|| compile_here(text, source_name, pure));
    compiled.unwrap_or_else(|reason| {
        Err(vec![Diagnostic::new(Place { line: 1, column: 1 }, "", reason, "a definition that can be compiled")])
    })
}

fn compile_here(text: &str, source_name: &str, pure: Arc<PureNodes>) -> Result<Definition, Vec<Diagnostic>> {
    let (root, problems) = document::read(text, source_name);
    let mut reader = Reader { problems };
    let definition = root.and_then(|root| read(&mut reader, &root, text, pure));
    let mut problems = reader.problems;
    if let Some(definition) = definition
        && problems.is_empty()
    {
        return Ok(definition);
    }
    problems.sort_by(|a, b| (a.line, a.column, &a.path).cmp(&(b.line, b.column, &b.path)));
    problems.dedup();
    if problems.len() > DIAGNOSTICS_MAX {
        problems.truncate(DIAGNOSTICS_MAX);
        let at = problems.last().map_or_else(Place::default, |last| Place { line: last.line, column: last.column });
        problems.push(Diagnostic::new(at, "", "more problems follow and are not shown", ""));
    }
    Err(problems)
}

/// Reads the definition; `None` when a problem was reported.
fn read(reader: &mut Reader, root: &Node, source: &str, pure: Arc<PureNodes>) -> Option<Definition> {
    reader.mapping(root, "", &KEYS)?;
    read_version(reader, root);
    let name = read_name(reader, root);
    let description = root.get("description").and_then(|node| match node.text() {
        Some(text) => Some(text.to_owned()),
        None => {
            reader.report(node.at, "description", node.describe(), "a text");
            None
        }
    });
    let schema = root.get("input").and_then(|node| schema::compile(node, "input", &mut reader.problems));
    let max_iterations =
        root.get("maxIterations").and_then(|node| reader.integer(node, "maxIterations", 1, ITERATIONS_MAX));
    let max_calls = root.get("maxCalls").and_then(|node| reader.integer(node, "maxCalls", 1, CALLS_MAX));
    let deadline = root.get("deadline").and_then(|node| reader.duration(node, "deadline", 1, DEADLINE_MS_MAX));
    let concurrency = root.get("concurrency").and_then(|node| reader.integer(node, "concurrency", 1, CONCURRENCY_MAX));

    let graph_name = name.as_ref().map_or("graph", LoopName::as_str);
    let graphs = read_graphs(reader, root, graph_name);
    let declared: Vec<TaskId> = graph_nodes(root).into_iter().flat_map(|(_, node)| tasks::task_ids(node)).collect();

    let before = Names { roots: &[Root::Input, Root::Run], tasks: &[], declared: &[] };
    let between = Names { roots: &GRAPH_INPUT, tasks: &[], declared: &[] };
    let after = Names { roots: &EVERYTHING, tasks: &declared, declared: &declared };
    let formula = |reader: &mut Reader, key: &str, yields, names: &Names<'_>| -> Option<Arc<dyn Formula>> {
        root.get(key).and_then(|node| reader.template(node, key, yields, names)).map(Template::into_formula)
    };
    let state = formula(reader, "state", Yields::Anything, &before);
    let select = formula(reader, "select", Yields::Text, &between);
    let update = formula(reader, "update", Yields::Anything, &after);
    let done = formula(reader, "done", Yields::Boolean, &after);
    let output = formula(reader, "output", Yields::Anything, &after);
    let wait = root.get("wait").and_then(|node| read_wait(reader, node, &after));
    check_together(reader, root, graphs.len());

    if !reader.problems.is_empty() {
        return None;
    }
    let name = name?;
    let canonical = canonical::canonical(root);
    let revision = canonical::revision(&canonical)?;
    let mut builder = StateLoop::builder(name.clone(), revision.clone()).pure_nodes(pure);
    for CompiledGraph { graph, input } in graphs {
        builder = builder.graph(graph, input.unwrap_or_else(run_input));
    }
    if let Some(schema) = schema {
        builder = builder.check_input(Arc::new(move |input: &Json| schema.check(input)));
    }
    // Without a state of its own a loop is worth what its tasks yield.
    let output = output.or_else(|| root.get("state").is_none().then(all_outputs));
    builder = apply(builder, state, |builder, value| builder.initial_state(value));
    builder = apply(builder, select, |builder, value| builder.select(value));
    builder = apply(builder, update, |builder, value| builder.update(value));
    builder = apply(builder, done, |builder, value| builder.done(value));
    builder = apply(builder, output, |builder, value| builder.output(value));
    builder = apply(builder, wait, |builder, value| builder.wait(value));
    builder = apply(builder, max_iterations, |builder, value| builder.max_iterations(value));
    builder = apply(builder, deadline, |builder, value| builder.deadline_ms(value));
    builder = apply(builder, concurrency.and_then(|n| usize::try_from(n).ok()), |builder, n| builder.concurrency(n));
    match builder.build() {
        Ok(plan) => {
            let plan: Arc<dyn Plan> = Arc::new(plan);
            let plan = match max_calls {
                Some(max_calls) => Arc::new(Budgeted { plan, max_calls }),
                None => plan,
            };
            Some(Definition { name, revision, description, plan, canonical, source: source.to_owned() })
        }
        Err(problems) => {
            for problem in problems {
                reader.report(root.at, "", problem.to_string(), "");
            }
            None
        }
    }
}

fn apply<B, T>(builder: B, value: Option<T>, set: impl FnOnce(B, T) -> B) -> B {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn run_input() -> Arc<dyn Formula> {
    Arc::new(|scope: &ditto_graph::Scope<'_>| Ok(scope.input.clone()))
}

fn all_outputs() -> Arc<dyn Formula> {
    Arc::new(|scope: &ditto_graph::Scope<'_>| {
        let mut writer = ditto_contracts::JsonWriter::new();
        writer.begin_object();
        for (task, output) in scope.tasks {
            writer.key(task.as_str()).value(output);
        }
        Ok(writer.finish())
    })
}

fn read_version(reader: &mut Reader, root: &Node) {
    match root.get("ditto") {
        Some(Node { value: Value::Number(version), .. }) if version == "1" => {}
        Some(other) => reader.report(other.at, "ditto", other.describe(), "`ditto: 1`, the format of this definition"),
        None => reader.report(root.at, "", "the key `ditto` is missing", "`ditto: 1`, the format of this definition"),
    }
}

fn read_name(reader: &mut Reader, root: &Node) -> Option<LoopName> {
    match root.get("loop") {
        Some(node) => reader.id(node, "loop", "a definition name", |text| LoopName::new(text)),
        None => {
            reader.report(root.at, "", "the key `loop` is missing", "`loop: name-of-the-loop`");
            None
        }
    }
}

/// The graphs as they are written, with their names; the single one has none.
fn graph_nodes(root: &Node) -> Vec<(Option<&str>, &Node)> {
    let named = root.get("graphs").map(Node::entries).unwrap_or_default();
    let single = root.get("graph").map(|node| (None, node));
    single.into_iter().chain(named.iter().map(|entry| (Some(entry.key.as_str()), &entry.node))).collect()
}

fn read_graphs(reader: &mut Reader, root: &Node, single_name: &str) -> Vec<CompiledGraph> {
    let mut out = Vec::new();
    if let Some(graph) = root.get("graph") {
        out.extend(tasks::read(reader, single_name, graph, "graph"));
    }
    match root.get("graphs") {
        None => {}
        Some(Node { value: Value::Map(entries), at, .. }) => {
            if entries.is_empty() {
                reader.report(*at, "graphs", "no graph", "at least one graph");
            }
            for entry in entries {
                let path = join("graphs", &entry.key);
                reader.id_text(&entry.key, entry.at, &path, "a graph name", |text| LoopName::new(text));
                out.extend(tasks::read(reader, &entry.key, &entry.node, &path));
            }
        }
        Some(other) => reader.report(other.at, "graphs", other.describe(), "a mapping from name to graph"),
    }
    out
}

fn read_wait(reader: &mut Reader, node: &Node, names: &Names<'_>) -> Option<Wait> {
    let before = reader.problems.len();
    let entries = reader.mapping(node, "wait", &WAIT_KEYS)?;
    if !entries.iter().any(|entry| matches!(entry.key.as_str(), "signal" | "for" | "until")) {
        reader.report(node.at, "wait", "nothing to wait for", "at least one of `signal`, `for`, `until`");
    }
    let signal = node.get("signal").and_then(|signal| {
        let text = reader.text(signal, "wait.signal", "the name of a signal; `wait.when` decides whether to wait")?;
        let fits = !text.trim().is_empty() && text.len() <= SIGNAL_BYTES_MAX && !text.chars().any(char::is_control);
        if !fits {
            let expected = format!("1 to {SIGNAL_BYTES_MAX} bytes of visible text");
            reader.report(signal.at, "wait.signal", signal.describe(), expected);
        }
        fits.then(|| text.to_owned())
    });
    if let Some(duration) = node.get("for")
        && (literal_text(duration).is_some() || duration.text().is_none())
    {
        reader.duration(duration, "wait.for", 1, DEADLINE_MS_MAX);
    }
    let when = node.get("when").and_then(|when| reader.template(when, "wait.when", Yields::Boolean, names));
    let duration = node.get("for").and_then(|value| reader.template(value, "wait.for", Yields::Anything, names));
    let until = node.get("until").and_then(|value| reader.template(value, "wait.until", Yields::Anything, names));
    if let Some(until) = node.get("until") {
        let fits = match &until.value {
            Value::Number(text) => text.parse::<i64>().is_ok(),
            Value::Text(text) => text.contains("${") || is_time(text),
            _ => false,
        };
        if !fits {
            let expected = "milliseconds since 1970, a time such as `2027-01-31T12:00:00Z`, or an expression";
            reader.report(until.at, "wait.until", until.describe(), expected);
        }
    }
    (reader.problems.len() == before).then(|| Wait {
        when: when.map(Template::into_formula),
        signal,
        duration: duration.map(Template::into_formula),
        until: until.map(Template::into_formula),
    })
}

/// Keys that belong together or exclude each other.
fn check_together(reader: &mut Reader, root: &Node, compiled: usize) {
    let at = |key: &str| root.entries().iter().find(|entry| entry.key == key).map(|entry| entry.at);
    match (at("graph"), at("graphs")) {
        (Some(_), Some(place)) => reader.report(place, "graphs", "`graph` and `graphs` together", "only one of them"),
        (None, None) => reader.report(root.at, "", "no graph", "`graph:` with tasks, or `graphs:` and `select:`"),
        _ => {}
    }
    match (at("graphs"), at("select")) {
        (Some(place), None) => {
            reader.report(
                place,
                "graphs",
                "`graphs` without `select`",
                "`select: \"${ … }\"` that yields the name of a graph",
            );
        }
        (None, Some(place)) => {
            reader.report(place, "select", "`select` without `graphs`", "`graphs:` with several graphs")
        }
        _ => {}
    }
    if let Some(select) = root.get("select").and_then(|node| literal_text(node).map(|text| (node, text)))
        && let Some(graphs) = root.get("graphs")
        && graphs.get(select.1).is_none()
    {
        let names: Vec<_> = graphs.entries().iter().map(|entry| entry.key.as_str()).collect();
        let message = format!("there is no graph `{}`", document::shorten(select.1));
        reader.report(select.0.at, "select", message, format!("one of {}", crate::reader::list(&names)));
    }
    // A loop without an end test runs once: what only matters between iterations would never be used.
    if at("done").is_none() && compiled > 0 {
        for key in ["maxIterations", "wait"] {
            if let Some(place) = at(key) {
                let message = format!("`{key}` without `done`: the loop runs once");
                reader.report(place, key, message, "`done: \"${ … }\"` that yields true after the last iteration");
            }
        }
    }
}
