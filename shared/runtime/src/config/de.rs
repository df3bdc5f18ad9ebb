//! Turns located values plus environment into a service's struct, and errors into problems with a place.
//!
//! serde stops at the first error. The caller therefore removes what an error points at and tries again, until the
//! rest fits: that is how all problems of a section are found.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};

use super::problem::Place;
use super::secret::SECRET;
use super::wording::{Culprit, DeError, Spot};
use super::yaml::{Entry, Node, Value, join};

/// Largest file a secret may be read from.
const MAX_SECRET_BYTES: u64 = 64 * 1024;

/// What all parts of one section's reading share.
pub(super) struct Context<'a> {
    /// Variables of this section that are not removed, by full name.
    pub(super) variables: BTreeMap<&'a str, &'a str>,
    /// The whole environment, for references from the file.
    pub(super) environment: &'a BTreeMap<String, String>,
    /// Folder that file references start from.
    pub(super) folder: Option<&'a Path>,
    /// Variables that were read, and the path each of them set.
    pub(super) used: RefCell<BTreeMap<String, String>>,
    /// Names of all variables that the struct has, for suggestions.
    pub(super) known: RefCell<BTreeSet<String>>,
}

/// Where a value comes from.
#[derive(Clone, Copy)]
enum Source<'a> {
    File(&'a Node),
    Variable {
        name: &'a str,
        text: &'a str,
    },
    /// Not in the file, but variables set something below it; the first of them.
    Below {
        name: &'a str,
    },
}

/// One value with its path.
#[derive(Clone)]
pub(super) struct De<'a> {
    source: Source<'a>,
    path: String,
    /// Name that variables below this value begin with.
    prefix: Option<String>,
    context: &'a Context<'a>,
}

impl<'a> De<'a> {
    /// The root of a section.
    pub(super) fn section(node: &'a Node, path: &str, prefix: &str, context: &'a Context<'a>) -> Self {
        Self { source: Source::File(node), path: path.to_owned(), prefix: Some(prefix.to_owned()), context }
    }

    pub(super) fn spot(&self) -> Spot {
        let (place, culprit) = match self.source {
            Source::File(node) => (node.place(), Culprit::Path(self.path.clone())),
            Source::Variable { name, .. } | Source::Below { name } => {
                (Place::Environment(name.to_owned()), Culprit::Variable(name.to_owned()))
            }
        };
        Spot { path: self.path.clone(), place, culprit }
    }

    fn unexpected(&self) -> Unexpected<'a> {
        match self.source {
            Source::File(node) => match &node.value {
                Value::Bool(value) => Unexpected::Bool(*value),
                Value::Int(value) => Unexpected::Signed(*value),
                Value::Float(value) => Unexpected::Float(*value),
                Value::Text(text) => Unexpected::Str(text),
                Value::List(_) => Unexpected::Seq,
                Value::Map(_) => Unexpected::Map,
            },
            Source::Variable { text, .. } => Unexpected::Str(text),
            Source::Below { .. } => Unexpected::Other("a variable for a key inside it"),
        }
    }

    fn refuse<T>(&self, expected: &dyn Expected) -> Result<T, DeError> {
        Err(match self.source {
            Source::Below { .. } => DeError::custom("unknown variable"),
            _ => DeError::invalid_type(self.unexpected(), expected),
        })
    }

    /// The text of a variable, marking it as read.
    fn variable(&self) -> Option<&'a str> {
        match self.source {
            Source::Variable { name, text } => {
                self.context.used.borrow_mut().insert(name.to_owned(), self.path.clone());
                Some(text)
            }
            _ => None,
        }
    }

    fn integer<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.variable() {
            None => self.deserialize_any(visitor),
            Some(text) => {
                if let Ok(value) = text.parse::<u64>() {
                    visitor.visit_u64(value)
                } else if let Ok(value) = text.parse::<i64>() {
                    visitor.visit_i64(value)
                } else {
                    self.refuse(&visitor)
                }
            }
        }
    }

    fn float<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.variable() {
            None => self.deserialize_any(visitor),
            Some(text) => match text.parse::<f64>() {
                Ok(value) if value.is_finite() => visitor.visit_f64(value),
                _ => self.refuse(&visitor),
            },
        }
    }

    fn secret<'de, V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if let Some(text) = self.variable() {
            return visitor.visit_str(text);
        }
        if let Source::File(Node { value: Value::Map(entries), .. }) = self.source
            && let [Entry { key, node: Node { value: Value::Text(name), .. }, .. }] = entries.as_slice()
        {
            match key.as_str() {
                "env" => {
                    return match self.context.environment.get(name).filter(|value| !value.is_empty()) {
                        Some(value) => visitor.visit_str(value),
                        None => Err(DeError::custom(format_args!("expected the variable {name} to be set"))),
                    };
                }
                "file" => return visitor.visit_str(&secret_file(self.context.folder, name)?),
                _ => {}
            }
        }
        match self.source {
            Source::File(Node { value: Value::Text(_), .. }) => Err(DeError::custom(
                "expected a secret by reference, `{ env: NAME }` or `{ file: path }`, found it written in the file",
            )),
            _ => self.refuse(&visitor),
        }
    }

    /// The entries of a struct: those of the file, with variables laid over them.
    fn fields(&self, entries: &'a [Entry], fields: &'static [&'static str]) -> Vec<Item<'a>> {
        let context = self.context;
        let mut items: Vec<Item<'a>> = entries.iter().map(|entry| Item::of_file(entry, &self.path, context)).collect();
        let Some(prefix) = &self.prefix else { return items };
        let names: Vec<(&'static str, String)> =
            fields.iter().map(|field| (*field, format!("{prefix}_{}", screaming(field)))).collect();
        context.known.borrow_mut().extend(names.iter().map(|(_, name)| name.clone()));
        for item in &mut items {
            item.value.prefix = names.iter().find(|(field, _)| *field == item.key).map(|(_, name)| name.clone());
        }
        for (&variable, &text) in &context.variables {
            // The longest field wins: `POOL_MAX_SIZE` is `poolMaxSize` if there is one, else `maxSize` inside `pool`.
            let owner = names
                .iter()
                .filter(|(_, name)| {
                    variable.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
                })
                .max_by_key(|(_, name)| name.len());
            let Some((field, name)) = owner else { continue };
            let exact = variable.len() == name.len();
            let present = items.iter().position(|item| item.key == *field);
            let source = if exact {
                Source::Variable { name: variable, text }
            } else if present.is_none() {
                Source::Below { name: variable }
            } else {
                continue; // read when the value itself is a struct, else left over and reported
            };
            let value = De { source, path: join(&self.path, field), prefix: Some(name.clone()), context };
            match present {
                Some(index) => items[index].value = value,
                None => items.push(Item { key: field, key_place: value.spot().place, value }),
            }
        }
        items
    }

    fn plain_items(&self, entries: &'a [Entry]) -> Vec<Item<'a>> {
        entries.iter().map(|entry| Item::of_file(entry, &self.path, self.context)).collect()
    }

    fn list_items(&self, nodes: &'a [Node]) -> Vec<De<'a>> {
        let item = |(index, node)| De {
            source: Source::File(node),
            path: format!("{}[{index}]", self.path),
            prefix: None,
            context: self.context,
        };
        nodes.iter().enumerate().map(item).collect()
    }
}

/// Reads a secret from a file; one trailing line break is not part of it.
fn secret_file(folder: Option<&Path>, name: &str) -> Result<String, DeError> {
    let path = folder.map_or_else(|| Path::new(name).to_path_buf(), |folder| folder.join(name));
    let problem = |what: &dyn fmt::Display| DeError::custom(format_args!("expected a readable secret file: {what}"));
    let size = std::fs::metadata(&path).map_err(|error| problem(&error.kind()))?.len();
    if size > MAX_SECRET_BYTES {
        return Err(problem(&format_args!("it has more than {MAX_SECRET_BYTES} bytes")));
    }
    let mut text = std::fs::read_to_string(&path).map_err(|error| problem(&error.kind()))?;
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.is_empty() { Err(problem(&"it is empty")) } else { Ok(text) }
}

/// `toolTimeoutMs` as `TOOL_TIMEOUT_MS`.
pub(super) fn screaming(field: &str) -> String {
    let mut name = String::with_capacity(field.len() + 4);
    let mut previous_lower = false;
    for c in field.chars() {
        if c.is_ascii_uppercase() && previous_lower {
            name.push('_');
        }
        previous_lower = c.is_ascii_lowercase() || c.is_ascii_digit();
        name.push(if c == '-' { '_' } else { c.to_ascii_uppercase() });
    }
    name
}

/// One key with its value.
struct Item<'a> {
    key: &'a str,
    key_place: Place,
    value: De<'a>,
}

impl<'a> Item<'a> {
    fn of_file(entry: &'a Entry, parent: &str, context: &'a Context<'a>) -> Self {
        Self {
            key: &entry.key,
            key_place: Place::File { line: entry.line, column: entry.column },
            value: De { source: Source::File(&entry.node), path: join(parent, &entry.key), prefix: None, context },
        }
    }
}

struct Items<'a> {
    rest: std::vec::IntoIter<Item<'a>>,
    value: Option<De<'a>>,
}

impl<'a> Items<'a> {
    fn new(items: Vec<Item<'a>>) -> Self {
        Self { rest: items.into_iter(), value: None }
    }
}

impl<'de> MapAccess<'de> for Items<'_> {
    type Error = DeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DeError> {
        let Some(item) = self.rest.next() else { return Ok(None) };
        let key: StrDeserializer<'_, DeError> = item.key.into_deserializer();
        let read = seed
            .deserialize(key)
            .map_err(|error| error.at(|| Spot { place: item.key_place.clone(), ..item.value.spot() }))?;
        self.value = Some(item.value);
        Ok(Some(read))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DeError> {
        let value = self.value.take().ok_or_else(|| DeError::custom("a value was read before its key"))?;
        seed.deserialize(value.clone()).map_err(|error| error.at(|| value.spot()))
    }
}

struct List<'a>(std::vec::IntoIter<De<'a>>);

impl<'de> SeqAccess<'de> for List<'_> {
    type Error = DeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DeError> {
        let Some(value) = self.0.next() else { return Ok(None) };
        seed.deserialize(value.clone()).map(Some).map_err(|error| error.at(|| value.spot()))
    }
}

/// An enum variant with a value: `{ name: value }`.
struct Variant<'a> {
    name: &'a str,
    value: De<'a>,
}

impl<'de, 'a> EnumAccess<'de> for Variant<'a> {
    type Error = DeError;
    type Variant = De<'a>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, De<'a>), DeError> {
        let name: StrDeserializer<'_, DeError> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.value))
    }
}

impl<'de> VariantAccess<'de> for De<'_> {
    type Error = DeError;

    fn unit_variant(self) -> Result<(), DeError> {
        Err(DeError::custom("expected its name only"))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DeError> {
        seed.deserialize(self.clone()).map_err(|error| error.at(|| self.spot()))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, DeError> {
        self.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, DeError> {
        let spot = self.spot();
        self.deserialize_struct("", fields, visitor).map_err(|error| error.at(|| spot))
    }
}

impl<'de> Deserializer<'de> for De<'_> {
    type Error = DeError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        if let Some(text) = self.variable() {
            return visitor.visit_str(text);
        }
        match self.source {
            Source::File(node) => match &node.value {
                Value::Bool(value) => visitor.visit_bool(*value),
                Value::Int(value) => visitor.visit_i64(*value),
                Value::Float(value) => visitor.visit_f64(*value),
                Value::Text(text) => visitor.visit_str(text),
                Value::List(nodes) => visitor.visit_seq(List(self.list_items(nodes).into_iter())),
                Value::Map(entries) => visitor.visit_map(Items::new(self.plain_items(entries))),
            },
            _ => self.refuse(&visitor),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.variable() {
            None => self.deserialize_any(visitor),
            Some("true") => visitor.visit_bool(true),
            Some("false") => visitor.visit_bool(false),
            Some(_) => self.refuse(&visitor),
        }
    }

    fn deserialize_i8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_i16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_i32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_u8<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_u16<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_u32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_u64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.integer(visitor)
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.float(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        self.float(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, DeError> {
        if name == SECRET { self.secret(visitor) } else { visitor.visit_newtype_struct(self) }
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        let (Some(text), Source::Variable { name, .. }) = (self.variable(), self.source) else {
            return match self.source {
                Source::File(Node { value: Value::List(_), .. }) => self.deserialize_any(visitor),
                _ => self.refuse(&visitor),
            };
        };
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        let mut seen = BTreeSet::new();
        if parts.iter().any(|part| part.is_empty() || !seen.insert(part)) {
            return Err(DeError::custom("expected a comma separated list without empty or repeated items"));
        }
        let item = |text| De { source: Source::Variable { name, text }, ..self.clone() };
        visitor.visit_seq(List(parts.into_iter().map(item).collect::<Vec<_>>().into_iter()))
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, DeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _len: usize,
        visitor: V,
    ) -> Result<V::Value, DeError> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        match self.source {
            Source::File(Node { value: Value::Map(_), .. }) => self.deserialize_any(visitor),
            _ => self.refuse(&visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        let entries: &[Entry] = match self.source {
            Source::File(Node { value: Value::Map(entries), .. }) => entries,
            Source::Below { .. } => &[],
            _ => return self.refuse(&visitor),
        };
        visitor.visit_map(Items::new(self.fields(entries, fields)))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeError> {
        if let Some(text) = self.variable() {
            let name: StrDeserializer<'_, DeError> = text.into_deserializer();
            return visitor.visit_enum(name);
        }
        match self.source {
            Source::File(Node { value: Value::Text(text), .. }) => {
                let name: StrDeserializer<'_, DeError> = text.as_str().into_deserializer();
                visitor.visit_enum(name)
            }
            Source::File(Node { value: Value::Map(entries), .. }) => match self.plain_items(entries).pop() {
                Some(item) if entries.len() == 1 => visitor.visit_enum(Variant { name: item.key, value: item.value }),
                _ => Err(DeError::custom("expected a name, or a mapping with one key")),
            },
            _ => self.refuse(&visitor),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DeError> {
        visitor.visit_unit()
    }

    serde::forward_to_deserialize_any! {
        i128 u128 char str string bytes byte_buf unit unit_struct identifier
    }
}
