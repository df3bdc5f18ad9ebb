//! Loads `ditto.yaml` and the environment, and hands each service its section.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read as _;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::de::{Context, Culprit, De, nearest, one_of};
use super::problem::{ConfigErrors, MAX_PROBLEMS, Place, Problem};
use super::yaml::{self, Node, Value, join};
use crate::fault;

/// Largest configuration file.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// A part of the configuration that one struct describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Where it is in the file, as in `workers.interaction`.
    pub path: &'static str,
    /// What its variables begin with, as in `DITTO_WORKER_INTERACTION`.
    pub prefix: &'static str,
}

/// Every section there is. A process reads some of them; the others may be present, so that one file serves the fleet.
pub const SECTIONS: &[Section] = &[
    Section { path: "log", prefix: "DITTO_LOG" },
    Section { path: "telemetry", prefix: "DITTO_TELEMETRY" },
    Section { path: "health", prefix: "DITTO_HEALTH" },
    Section { path: "bus", prefix: "DITTO_BUS" },
    Section { path: "runtime", prefix: "DITTO_RUNTIME" },
    Section { path: "shared", prefix: "DITTO_SHARED" },
    Section { path: "coordinator", prefix: "DITTO_COORDINATOR" },
    Section { path: "workers.interaction", prefix: "DITTO_WORKER_INTERACTION" },
    Section { path: "workers.context", prefix: "DITTO_WORKER_CONTEXT" },
    Section { path: "workers.memory", prefix: "DITTO_WORKER_MEMORY" },
    Section { path: "workers.infer", prefix: "DITTO_WORKER_INFER" },
    Section { path: "dev", prefix: "DITTO_DEV" },
];

/// Variables of a process as a whole, read where they are needed. `DITTO_TEST_…` is allowed too.
pub const PROCESS_VARIABLES: &[&str] =
    &["DITTO_CONFIG", "DITTO_LOG", "DITTO_BIN", "DITTO_INSTANCE", "DITTO_SERVER", "DITTO_NATS_URL", "DITTO_TOKEN"];

/// What a section's struct demands beyond its types: ranges, and values that must fit together.
pub trait Validate {
    /// Reports what does not hold.
    fn validate(&self, check: &mut Check<'_>);
}

/// The file and the environment, read once and unchanged afterwards.
pub struct ConfigTree {
    file: Option<PathBuf>,
    root: Node,
    environment: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

impl fmt::Debug for ConfigTree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Neither values nor the environment: both may hold secrets.
        f.debug_struct("ConfigTree").field("file", &self.file).field("problems", &self.problems).finish_non_exhaustive()
    }
}

/// The file to read: the one that was asked for, else that of `DITTO_CONFIG`, else `ditto.yaml` here if there is one.
///
/// A file that was asked for is returned whether it exists or not, so that [`load`] can say that it is missing.
pub fn find_file(asked: Option<PathBuf>) -> Option<PathBuf> {
    let variable = || std::env::var_os("DITTO_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    let here = || Some(PathBuf::from("ditto.yaml")).filter(|path| path.exists());
    asked.or_else(variable).or_else(here)
}

/// Reads the file (if any) and the environment, usually `std::env::vars()`.
///
/// Problems that leave a readable tree (an unknown section, a repeated key, an alias, an unknown variable …) do not
/// end the reading: they are reported together with those of the sections, by [`Reader::finish`] or
/// [`ConfigTree::section`].
///
/// # Errors
/// The file is missing, unreadable, larger than [`MAX_FILE_BYTES`], not UTF-8, not YAML, empty, or not a mapping.
pub fn load(path: Option<&Path>, env: impl Iterator<Item = (String, String)>) -> Result<ConfigTree, ConfigErrors> {
    let environment: BTreeMap<String, String> = env.filter(|(_, value)| !value.is_empty()).collect();
    let (root, mut problems) = match path {
        None => (empty_map(), Vec::new()),
        Some(path) => read_file(path)
            .and_then(|text| yaml::parse(&text))
            .map_err(|problems| ConfigErrors::new(Some(path.display().to_string()), problems))?,
    };
    unknown_sections(&root, &mut problems);
    unknown_variables(&root, &environment, &mut problems);
    Ok(ConfigTree { file: path.map(Path::to_path_buf), root, environment, problems })
}

impl ConfigTree {
    /// One section, on its own. Prefer [`ConfigTree::reader`] for several: it reports the problems of all together.
    ///
    /// # Errors
    /// All problems of this section and of the file as a whole.
    pub fn section<T>(&self, path: &str) -> Result<T, ConfigErrors>
    where
        T: for<'de> Deserialize<'de> + Default + Validate,
    {
        let mut reader = self.reader();
        let value = reader.section(path);
        reader.finish().map(|()| value)
    }

    /// Reads several sections and reports all their problems at once.
    pub fn reader(&self) -> Reader<'_> {
        Reader { tree: self, problems: self.problems.clone() }
    }

    /// The file that was read.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// A variable of the process as a whole; an empty one counts as not set.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Names of all `DITTO_…` variables that are set, for diagnosis. Names only.
    pub fn variable_names(&self) -> impl Iterator<Item = &str> {
        self.environment.keys().map(String::as_str).filter(|name| name.starts_with("DITTO_"))
    }

    /// Whether the file has this section or a variable sets something in it.
    pub fn has_section(&self, path: &str) -> bool {
        find(&self.root, path).is_some()
            || SECTIONS.iter().filter(|section| section.path == path).any(|section| {
                self.environment.keys().any(|name| owner(name).is_some_and(|owner| owner.path == section.path))
            })
    }

    fn error(&self, problems: Vec<Problem>) -> ConfigErrors {
        ConfigErrors::new(self.file.as_ref().map(|file| file.display().to_string()), problems)
    }
}

/// Collects the problems of the sections a process reads.
#[derive(Debug)]
pub struct Reader<'a> {
    tree: &'a ConfigTree,
    problems: Vec<Problem>,
}

impl Reader<'_> {
    /// The section, with variables laid over it. Use the value only after [`Reader::finish`] said that all is well:
    /// what was wrong has its default here.
    ///
    /// A path that is not in [`SECTIONS`] is a problem as well, so that a misspelt one is noticed.
    pub fn section<T>(&mut self, path: &str) -> T
    where
        T: for<'de> Deserialize<'de> + Default + Validate,
    {
        match SECTIONS.iter().find(|section| section.path == path) {
            Some(section) => self.read(section),
            None => {
                self.problems.push(Problem {
                    path: path.to_owned(),
                    place: Place::Whole,
                    message: "no such section is known to this build".into(),
                });
                T::default()
            }
        }
    }

    /// Adds a problem that only the caller can know.
    pub fn report(&mut self, path: &str, message: impl fmt::Display) {
        let place = find(&self.tree.root, path).map_or(Place::Whole, Node::place);
        self.problems.push(Problem { path: path.to_owned(), place, message: message.to_string() });
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Everything that is wrong: the file as a whole, the environment, and every section that was read.
    pub fn finish(self) -> Result<(), ConfigErrors> {
        if self.problems.is_empty() { Ok(()) } else { Err(self.tree.error(self.problems)) }
    }

    fn read<T>(&mut self, section: &Section) -> T
    where
        T: for<'de> Deserialize<'de> + Default + Validate,
    {
        let original = find(&self.tree.root, section.path).cloned().unwrap_or_else(empty_map);
        let mut node = original.clone();
        let mut context = Context {
            variables: self
                .tree
                .environment
                .iter()
                .filter(|(name, _)| owner(name).is_some_and(|owner| owner == section))
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect(),
            environment: &self.tree.environment,
            folder: self.tree.file.as_deref().and_then(Path::parent),
            used: RefCell::default(),
            known: RefCell::default(),
        };
        let mut taken_out = BTreeSet::new();
        for _ in 0..MAX_PROBLEMS {
            context.used.borrow_mut().clear();
            let root = De::section(&node, section.path, section.prefix, &context);
            let error = match T::deserialize(root.clone()) {
                Ok(value) => {
                    self.left_over(section, &context);
                    let used = context.used.into_inner();
                    let mut check = Check {
                        base: section.path.to_owned(),
                        section,
                        original: &original,
                        used: &used,
                        found: Vec::new(),
                    };
                    value.validate(&mut check);
                    // A part that was taken out has its default: what follows from that is not a second problem.
                    let found = check.found.into_iter().filter(|problem| !taken_out.contains(&problem.path));
                    self.problems.extend(found);
                    return value;
                }
                Err(error) => error.at(|| root.spot()),
            };
            let Some(spot) = error.spot else { break };
            let path = match &spot.place {
                // Items taken out of a list have moved the later ones: name this one as it is in the file.
                Place::File { line, column } if spot.path.contains('[') => {
                    path_at(&original, section.path, *line, *column).unwrap_or_else(|| spot.path.clone())
                }
                _ => spot.path.clone(),
            };
            let path = error.missing.map_or_else(|| path.clone(), |field| join(&path, field));
            taken_out.insert(path.clone());
            self.problems.push(Problem { path, place: spot.place, message: error.message });
            let removed = match &spot.culprit {
                Culprit::Variable(name) => context.variables.remove(name.as_str()).is_some(),
                Culprit::Path(path) => remove(&mut node, relative(section.path, path)),
            };
            if !removed {
                break;
            }
        }
        T::default()
    }

    /// Variables of the section that no field took.
    fn left_over(&mut self, section: &Section, context: &Context<'_>) {
        let used = context.used.borrow();
        let known = context.known.borrow();
        for name in context.variables.keys().filter(|name| !used.contains_key(**name)) {
            if references(&self.tree.root).contains(*name) {
                continue;
            }
            let message = match nearest(name, known.iter().map(String::as_str)) {
                Some(near) => format!("unknown variable, did you mean {near}?"),
                None => "unknown variable".into(),
            };
            self.problems.push(Problem {
                path: section.path.to_owned(),
                place: Place::Environment((*name).to_owned()),
                message,
            });
        }
    }
}

/// Collects what [`Validate`] finds, each with the place the value came from.
#[derive(Debug)]
pub struct Check<'a> {
    base: String,
    section: &'a Section,
    original: &'a Node,
    used: &'a BTreeMap<String, String>,
    found: Vec<Problem>,
}

impl Check<'_> {
    /// Reports `expected` (as in "a text that is not empty") for `field` unless `holds`.
    pub fn that(&mut self, field: &str, holds: bool, expected: impl fmt::Display) {
        if !holds {
            self.push(field, format!("expected {expected}"));
        }
    }

    /// Reports `field` unless its value is in the range, both ends included.
    pub fn range<T: PartialOrd + fmt::Display>(&mut self, field: &str, value: T, range: RangeInclusive<T>) {
        if !range.contains(&value) {
            self.push(field, format!("expected {} to {}, found {value}", range.start(), range.end()));
        }
    }

    /// Validates a part of the section; inside it, field names start from there.
    pub fn nested(&mut self, field: &str, part: &impl Validate) {
        let base = join(&self.base, field);
        let outer = std::mem::replace(&mut self.base, base);
        part.validate(self);
        self.base = outer;
    }

    fn push(&mut self, field: &str, message: String) {
        let path = join(&self.base, field);
        let place = match self.used.iter().find(|(_, set)| **set == path) {
            Some((variable, _)) => Place::Environment(variable.clone()),
            None => nearest_place(self.original, relative(self.section.path, &path)),
        };
        self.found.push(Problem { path, place, message });
    }
}

fn empty_map() -> Node {
    Node { value: Value::Map(Vec::new()), line: 1, column: 1 }
}

fn read_file(path: &Path) -> Result<String, Vec<Problem>> {
    let whole = |message: String| vec![Problem { path: String::new(), place: Place::Whole, message }];
    let unreadable = |error: std::io::Error| whole(format!("expected a readable file: {}", error.kind()));
    let file = std::fs::File::open(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(whole(format!("expected at most {MAX_FILE_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|_| whole("expected UTF-8 text".into()))
}

/// The section a variable belongs to: the one with the longest prefix.
fn owner(variable: &str) -> Option<&'static Section> {
    SECTIONS
        .iter()
        .filter(|section| variable.strip_prefix(section.prefix).is_some_and(|rest| rest.starts_with('_')))
        .max_by_key(|section| section.prefix.len())
}

fn unknown_sections(root: &Node, problems: &mut Vec<Problem>) {
    let Value::Map(entries) = &root.value else { return };
    for entry in entries {
        unknown_section(&entry.key, entry, problems);
    }
}

/// Descends as long as the path is only the beginning of known sections, as `workers` is.
fn unknown_section(path: &str, entry: &yaml::Entry, problems: &mut Vec<Problem>) {
    if SECTIONS.iter().any(|section| section.path == path) {
        return;
    }
    let inside = format!("{path}.");
    let parent = path.rsplit_once('.').map(|(parent, _)| format!("{parent}.")).unwrap_or_default();
    let mut push = |place: Place, message: String| problems.push(Problem { path: path.to_owned(), place, message });
    if SECTIONS.iter().any(|section| section.path.starts_with(&inside)) {
        match &entry.node.value {
            Value::Map(entries) => {
                for child in entries {
                    unknown_section(&join(path, &child.key), child, problems);
                }
            }
            other => push(entry.node.place(), format!("expected a mapping, found {}", yaml::describe(other))),
        }
        return;
    }
    let mut names: Vec<&str> = SECTIONS
        .iter()
        .filter_map(|section| section.path.strip_prefix(&parent))
        .filter_map(|rest| rest.split('.').next())
        .collect();
    names.dedup();
    let message = match nearest(&entry.key, names.iter().copied()) {
        Some(near) => format!("unknown section, did you mean `{near}`?"),
        None => format!("unknown section, expected {}", one_of(&names)),
    };
    push(Place::File { line: entry.line, column: entry.column }, message);
}

fn unknown_variables(root: &Node, environment: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    let referenced = references(root);
    for (name, value) in environment.iter().filter(|(name, _)| name.starts_with("DITTO_")) {
        let mut push = |message: String| {
            problems.push(Problem { path: String::new(), place: Place::Environment(name.clone()), message });
        };
        if name == fault::VARIABLE {
            if let Err(error) = fault::check(value) {
                push(error.to_string());
            }
        } else if !(PROCESS_VARIABLES.contains(&name.as_str())
            || name.starts_with("DITTO_TEST_")
            || owner(name).is_some()
            || referenced.contains(name.as_str()))
        {
            push(match nearest(name, PROCESS_VARIABLES.iter().copied()) {
                Some(near) => format!("unknown variable, did you mean {near}?"),
                None => "unknown variable: no section begins like this".into(),
            });
        }
    }
}

/// Names of the variables that the file refers to by `{ env: NAME }`.
fn references(root: &Node) -> BTreeSet<&str> {
    let mut names = BTreeSet::new();
    let mut open = vec![root];
    while let Some(node) = open.pop() {
        match &node.value {
            Value::List(nodes) => open.extend(nodes),
            Value::Map(entries) => {
                if let [yaml::Entry { key, node: Node { value: Value::Text(name), .. }, .. }] = entries.as_slice()
                    && key == "env"
                {
                    names.insert(name.as_str());
                }
                open.extend(entries.iter().map(|entry| &entry.node));
            }
            _ => {}
        }
    }
    names
}

/// The path below the section.
fn relative<'p>(section: &str, path: &'p str) -> &'p str {
    path.strip_prefix(section).map_or(path, |rest| rest.strip_prefix('.').unwrap_or(rest))
}

/// Splits `a.b[2].c` into its steps. Keys with a dot in them cannot be told apart and are not found.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[']).map(|step| step.trim_end_matches(']')).filter(|step| !step.is_empty())
}

fn step<'n>(node: &'n Node, step: &str) -> Option<&'n Node> {
    match &node.value {
        Value::Map(_) => node.get(step),
        Value::List(nodes) => nodes.get(step.parse::<usize>().ok()?),
        _ => None,
    }
}

fn find<'n>(root: &'n Node, path: &str) -> Option<&'n Node> {
    steps(path).try_fold(root, step)
}

/// The path of what is written at this place: a value, or a key.
fn path_at(node: &Node, path: &str, line: usize, column: usize) -> Option<String> {
    let here = (line, column);
    match &node.value {
        _ if (node.line, node.column) == here && !matches!(node.value, Value::Map(_)) => Some(path.to_owned()),
        Value::Map(entries) => entries
            .iter()
            .find_map(|entry| {
                let inside = join(path, &entry.key);
                if (entry.line, entry.column) == here {
                    return Some(inside);
                }
                path_at(&entry.node, &inside, line, column)
            })
            .or_else(|| ((node.line, node.column) == here).then(|| path.to_owned())),
        Value::List(nodes) => {
            nodes.iter().enumerate().find_map(|(index, node)| path_at(node, &format!("{path}[{index}]"), line, column))
        }
        _ => None,
    }
}

/// The place of a value, or of the nearest thing around it that is in the file.
fn nearest_place(root: &Node, path: &str) -> Place {
    let mut node = root;
    for name in steps(path) {
        match step(node, name) {
            Some(next) => node = next,
            // An empty section has no place of its own.
            None if node.value == Value::Map(Vec::new()) => return Place::Whole,
            None => break,
        }
    }
    node.place()
}

/// Takes a value out; `false` if there is none at this path, or it is the root.
fn remove(root: &mut Node, path: &str) -> bool {
    let steps: Vec<&str> = steps(path).collect();
    let Some((last, parents)) = steps.split_last() else { return false };
    let mut node = root;
    for name in parents {
        let next = match &mut node.value {
            Value::Map(entries) => entries.iter_mut().find(|entry| entry.key == *name).map(|entry| &mut entry.node),
            Value::List(nodes) => name.parse::<usize>().ok().and_then(|index| nodes.get_mut(index)),
            _ => None,
        };
        match next {
            Some(next) => node = next,
            None => return false,
        }
    }
    match &mut node.value {
        Value::Map(entries) => {
            let before = entries.len();
            entries.retain(|entry| entry.key != *last);
            entries.len() < before
        }
        Value::List(nodes) => match last.parse::<usize>() {
            Ok(index) if index < nodes.len() => {
                nodes.remove(index);
                true
            }
            _ => false,
        },
        _ => false,
    }
}
