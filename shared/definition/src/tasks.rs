//! Graphs and their tasks.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use ditto_contracts::{NodeType, OnUnknown, Pool, TaskId, limits::GRAPH_TASKS_MAX};
use ditto_graph::{Formula, Graph, Retry, Task};

use crate::{
    diagnostic::{Place, nearest},
    document::{Entry, Node, Value, join, shorten, shorten_to},
    duration::TIMEOUT_MS_MAX,
    expression::{Names, Root},
    nodes,
    reader::Reader,
    template::{Template, Yields},
};

const GRAPH_KEYS: [&str; 2] = ["input", "tasks"];
const TASK_KEYS: [&str; 9] = ["node", "needs", "with", "when", "fail", "retry", "timeout", "pool", "onUnknown"];
const RETRY_KEYS: [&str; 2] = ["maxAttempts", "backoff"];
/// Pause before the second attempt when a retry names none, in milliseconds.
const BACKOFF_DEFAULT_MS: u64 = 1_000;
/// Tasks out of order for which a cycle is searched; any further ones are only said to be out of order.
const CYCLE_SEARCHES_MAX: usize = 64;

/// Roots where a graph gets its input.
pub(crate) const GRAPH_INPUT: [Root; 4] = [Root::Input, Root::State, Root::Run, Root::Signal];
/// Roots inside a task, and after a graph.
pub(crate) const EVERYTHING: [Root; 6] = [Root::Input, Root::State, Root::Graph, Root::Tasks, Root::Run, Root::Signal];

/// A compiled graph.
pub(crate) struct CompiledGraph {
    pub(crate) graph: Graph,
    /// Its input; `None`: the input of the run.
    pub(crate) input: Option<Arc<dyn Formula>>,
}

/// The ids of the tasks a graph declares, as far as they are readable.
pub(crate) fn task_ids(graph: &Node) -> Vec<TaskId> {
    let tasks = graph.get("tasks").map(Node::entries).unwrap_or_default();
    tasks.iter().filter_map(|entry| TaskId::new(&entry.key).ok()).collect()
}

/// Reads a graph; `None` when a problem was reported.
pub(crate) fn read(reader: &mut Reader, id: &str, node: &Node, path: &str) -> Option<CompiledGraph> {
    let before = reader.problems.len();
    reader.mapping(node, path, &GRAPH_KEYS)?;
    let names = Names { roots: &GRAPH_INPUT, tasks: &[], declared: &[] };
    let input = node.get("input").map(|input| reader.template(input, &join(path, "input"), Yields::Anything, &names));
    let tasks_path = join(path, "tasks");
    let entries = match node.get("tasks") {
        None => {
            reader.report(
                node.at,
                path,
                "the key `tasks` is missing",
                "`tasks:` with a mapping of tasks, which may be empty: `{}`",
            );
            return None;
        }
        Some(Node { value: Value::Map(entries), .. }) => entries.as_slice(),
        Some(other) => {
            reader.report(other.at, &tasks_path, other.describe(), "a mapping from task id to task");
            return None;
        }
    };
    if entries.len() > GRAPH_TASKS_MAX {
        let message = format!("{} tasks", entries.len());
        reader.report(node.at, &tasks_path, message, format!("at most {GRAPH_TASKS_MAX} tasks in a graph"));
        return None;
    }
    let declared = task_ids(node);
    let mut order = Order::new(entries);
    order.report_cycles(reader, &tasks_path);
    let mut builder = Graph::builder(id);
    for entry in entries {
        if let Some(task) = read_task(reader, entry, &join(&tasks_path, &entry.key), &order, &declared) {
            builder = builder.task(task);
        }
    }
    if reader.problems.len() > before {
        return None;
    }
    match builder.build() {
        Ok(graph) => Some(CompiledGraph { graph, input: input.flatten().map(Template::into_formula) }),
        Err(problems) => {
            for problem in problems {
                reader.report(node.at, path, problem.to_string(), "");
            }
            None
        }
    }
}

fn read_task(reader: &mut Reader, entry: &Entry, path: &str, order: &Order<'_>, declared: &[TaskId]) -> Option<Task> {
    let node = &entry.node;
    let id = reader.id_text(&entry.key, entry.at, path, "a task id", |text| TaskId::new(text));
    reader.mapping(node, path, &TASK_KEYS)?;
    let node_type = match node.get("node") {
        None => {
            reader.report(entry.at, path, "the key `node` is missing", "`node: DOMAIN.NAME`");
            None
        }
        Some(found) => read_node_type(reader, found, &join(path, "node")),
    };
    let needs = read_needs(reader, node.get("needs"), entry, &join(path, "needs"), order);
    let names = Names { roots: &EVERYTHING, tasks: &needs, declared };
    let input =
        node.get("with").map(|with| (with, reader.template(with, &join(path, "with"), Yields::Anything, &names)));
    if let Some(node_type) = &node_type {
        let with = node.get("with");
        let path = if with.is_some() { join(path, "with") } else { path.to_owned() };
        nodes::check_input(node_type.as_str(), with, entry.at, &path, &mut reader.problems);
    }
    let when = node.get("when").map(|when| reader.template(when, &join(path, "when"), Yields::Boolean, &names));
    let fail = node.get("fail").map(|fail| reader.template(fail, &join(path, "fail"), Yields::OptionalText, &names));
    let retry = node.get("retry").map(|retry| read_retry(reader, retry, &join(path, "retry")));
    let timeout = node.get("timeout").map(|node| reader.duration(node, &join(path, "timeout"), 1, TIMEOUT_MS_MAX));
    let pool =
        node.get("pool").map(|pool| reader.id(pool, &join(path, "pool"), "the name of a pool", |text| Pool::new(text)));
    let on_unknown = node.get("onUnknown").map(|found| {
        let choices = [("park", OnUnknown::Park), ("surface", OnUnknown::Surface), ("fail", OnUnknown::Fail)];
        reader.choice(found, &join(path, "onUnknown"), &choices)
    });

    let mut task = Task::new(id?, node_type?).needs(needs);
    if let Some((_, input)) = input {
        task = task.input(input?.into_formula());
    }
    if let Some(when) = when {
        task = task.when(when?.into_formula());
    }
    if let Some(fail) = fail {
        task = task.fail(fail?.into_formula());
    }
    if let Some(retry) = retry {
        task = task.retry(retry?);
    }
    if let Some(timeout) = timeout {
        task = task.timeout_ms(timeout?);
    }
    if let Some(pool) = pool {
        task = task.pool(pool?);
    }
    if let Some(on_unknown) = on_unknown {
        task = task.on_unknown(on_unknown?);
    }
    Some(task)
}

fn read_node_type(reader: &mut Reader, node: &Node, path: &str) -> Option<NodeType> {
    let node_type = reader.id(node, path, "a node type such as `INTERACTION.ACT.TOOL`", |text| NodeType::new(text))?;
    match nodes::check_type(node_type.as_str()) {
        Ok(()) => Some(node_type),
        Err((message, expected)) => {
            reader.report(node.at, path, message, expected);
            None
        }
    }
}

fn read_retry(reader: &mut Reader, node: &Node, path: &str) -> Option<Retry> {
    reader.mapping(node, path, &RETRY_KEYS)?;
    let attempts = match node.get("maxAttempts") {
        Some(found) => reader.integer(found, &join(path, "maxAttempts"), 2, 100),
        None => {
            reader.report(
                node.at,
                path,
                "the key `maxAttempts` is missing",
                "`maxAttempts:` from 2 to 100, the first attempt included",
            );
            None
        }
    };
    let backoff = match node.get("backoff") {
        Some(found) => reader.duration(found, &join(path, "backoff"), 0, TIMEOUT_MS_MAX),
        None => Some(BACKOFF_DEFAULT_MS),
    };
    Some(Retry { max_attempts: u16::try_from(attempts?).ok()?, backoff_ms: backoff? })
}

/// The needs of a task that exist; the others are reported.
fn read_needs(reader: &mut Reader, node: Option<&Node>, task: &Entry, path: &str, order: &Order<'_>) -> Vec<TaskId> {
    let Some(node) = node else { return Vec::new() };
    let Value::List(items) = &node.value else {
        reader.report(node.at, path, node.describe(), "a list of task ids, such as `[read]`");
        return Vec::new();
    };
    let mut needs: Vec<TaskId> = Vec::new();
    for (n, item) in items.iter().enumerate() {
        let path = format!("{path}[{n}]");
        let Some(name) = reader.text(item, &path, "a task id") else { continue };
        let Ok(id) = TaskId::new(name) else {
            reader.report(item.at, &path, item.describe(), "a task id");
            continue;
        };
        let own = order.position.get(task.key.as_str()).copied().unwrap_or_default();
        match order.position.get(name) {
            None => {
                let near = nearest(name, order.entries.iter().take(own).map(|entry| entry.key.as_str()));
                let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
                let message = format!("unknown task `{}`{hint}", shorten(name));
                reader.report(item.at, &path, message, "a task of this graph, declared earlier");
                continue;
            }
            // Part of a cycle that is reported as a whole, or merely in the wrong place.
            Some(at) if *at >= own && !order.cyclic.contains(task.key.as_str()) => {
                let message = format!("task `{}` is declared later", shorten(name));
                reader.report(item.at, &path, message, format!("`{}` above `{}`", shorten(name), shorten(&task.key)));
            }
            Some(_) => {}
        }
        if !needs.contains(&id) {
            needs.push(id);
        }
    }
    needs
}

/// Where each task is declared, and which are part of a cycle.
struct Order<'e> {
    entries: &'e [Entry],
    position: HashMap<&'e str, usize>,
    cyclic: HashSet<&'e str>,
}

impl<'e> Order<'e> {
    fn new(entries: &'e [Entry]) -> Self {
        let position = entries.iter().enumerate().map(|(n, entry)| (entry.key.as_str(), n)).collect();
        Self { entries, position, cyclic: HashSet::new() }
    }

    /// Reports each cycle once, naming its tasks. A cycle always has a task that needs a later one or itself.
    fn report_cycles(&mut self, reader: &mut Reader, path: &str) {
        let is_late = |(n, entry): &(usize, &'e Entry)| {
            needs_of(entry).iter().any(|(need, _)| self.position.get(need).is_some_and(|at| at >= n))
        };
        let late: Vec<&Entry> = self.entries.iter().enumerate().filter(is_late).map(|(_, entry)| entry).collect();
        for entry in late.into_iter().take(CYCLE_SEARCHES_MAX) {
            if self.cyclic.contains(entry.key.as_str()) {
                continue;
            }
            let Some(cycle) = self.cycle_through(&entry.key) else { continue };
            let next = cycle.get(1).copied().unwrap_or(entry.key.as_str());
            let at = needs_of(entry).iter().find(|(name, _)| *name == next).map_or(entry.at, |(_, at)| *at);
            let chain: Vec<_> = cycle.iter().chain(cycle.first()).map(|name| format!("`{}`", shorten(name))).collect();
            let message = format!("a cycle: {}", shorten_to(&chain.join(" needs "), 400));
            let path = join(&join(path, &entry.key), "needs");
            reader.report(at, &path, message, "tasks that need only tasks declared earlier");
            self.cyclic.extend(cycle);
        }
    }

    /// The shortest cycle that a task is part of, beginning with it.
    fn cycle_through(&self, start: &'e str) -> Option<Vec<&'e str>> {
        let mut came_from: HashMap<&str, &str> = HashMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(name) = queue.pop_front() {
            let Some(entry) = self.position.get(name).and_then(|n| self.entries.get(*n)) else { continue };
            for (need, _) in needs_of(entry) {
                if need == start {
                    let mut chain = vec![name];
                    let mut at = name;
                    while at != start {
                        at = came_from.get(at).copied()?;
                        chain.push(at);
                    }
                    chain.reverse();
                    return Some(chain);
                }
                if !came_from.contains_key(need) {
                    came_from.insert(need, name);
                    queue.push_back(need);
                }
            }
        }
        None
    }
}

/// The names a task needs, with the places where they are written.
fn needs_of(entry: &Entry) -> Vec<(&str, Place)> {
    match entry.node.get("needs").map(|node| &node.value) {
        Some(Value::List(items)) => items.iter().filter_map(|item| item.text().map(|text| (text, item.at))).collect(),
        _ => Vec::new(),
    }
}
