//! Signals that arrived before anybody waited for them.

use std::collections::VecDeque;

use ditto_contracts::{Json, JsonWriter};

/// Most signals kept for later. Further ones are not kept.
pub(crate) const SIGNALS_MAX: usize = 256;
/// Most of them of one name, so that a chatty sender cannot keep others out.
pub(crate) const SIGNALS_OF_A_NAME_MAX: usize = 64;
/// Most bytes of bodies kept for later, unless there is only one.
pub(crate) const SIGNAL_BYTES_MAX: usize = 256 * 1024;

/// Signals in the order of their arrival.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Inbox {
    waiting: VecDeque<(String, Json)>,
    bytes: usize,
}

impl Inbox {
    pub(crate) fn restore(waiting: Vec<(String, Json)>) -> Self {
        let bytes = waiting.iter().map(|(_, body)| body.len()).sum();
        Self { waiting: waiting.into(), bytes }
    }

    /// Keeps a signal. When there is no room the earlier ones stay: the first answer to a question counts.
    pub(crate) fn push(&mut self, name: &str, body: &Json) {
        let of_name = self.waiting.iter().filter(|(waiting, _)| waiting == name).count();
        let fits = of_name < SIGNALS_OF_A_NAME_MAX
            && self.waiting.len() < SIGNALS_MAX
            && self.bytes + body.len() <= SIGNAL_BYTES_MAX;
        if fits || self.waiting.is_empty() {
            self.bytes += body.len();
            self.waiting.push_back((name.to_owned(), body.clone()));
        }
    }

    /// The first signal of this name.
    pub(crate) fn take(&mut self, name: &str) -> Option<Json> {
        let at = self.waiting.iter().position(|(waiting, _)| waiting == name)?;
        let (_, body) = self.waiting.remove(at)?;
        self.bytes -= body.len();
        Some(body)
    }

    pub(crate) fn write(&self, w: &mut JsonWriter) {
        w.begin_array();
        for (name, body) in &self.waiting {
            w.begin_array().string(name).value(body).end();
        }
        w.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_taken_by_name_in_order_and_kept_within_bounds() {
        let mut inbox = Inbox::default();
        for n in 0..SIGNALS_MAX {
            inbox.push(if n == 1 { "b" } else { "a" }, &Json::string(&n.to_string()));
        }
        assert_eq!(inbox.waiting.len(), SIGNALS_OF_A_NAME_MAX + 1);
        assert_eq!(inbox.take("b"), Some(Json::string("1")));
        assert_eq!((inbox.take("a"), inbox.take("a")), (Some(Json::string("0")), Some(Json::string("2"))));
        assert_eq!(inbox.take("c"), None);
        (0..2 * SIGNALS_MAX).for_each(|n| inbox.push(&format!("n{n}"), &Json::null()));
        assert_eq!(inbox.waiting.len(), SIGNALS_MAX);
        let mut large = Inbox::default();
        large.push("a", &Json::string(&"x".repeat(2 * SIGNAL_BYTES_MAX)));
        large.push("a", &Json::null());
        assert_eq!(large.waiting.len(), 1);
    }
}
