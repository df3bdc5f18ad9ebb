//! Loads `ditto.yaml` and the environment, and hands each service its section.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::check::{Check, Validate};
use super::de::{Context, De};
use super::path::{find, path_at, relative, remove};
use super::problem::{ConfigErrors, MAX_PROBLEMS, Place, Problem};
use super::sections::{SECTIONS, Section, owner, references, unknown_sections, unknown_variables};
use super::wording::{Culprit, nearest};
use super::yaml::{self, Node, Value, join};

/// Largest configuration file.
pub const MAX_FILE_BYTES: u64 = 1024 * 1024;

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
