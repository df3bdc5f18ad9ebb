//! Plain messages: subscriptions by subject, wildcard and queue group.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use tokio::sync::Notify;

use crate::{Message, Received, Subscription, subject};

/// All subscriptions of a local bus.
#[derive(Default)]
pub(super) struct Plain {
    routes: RwLock<Routes>,
    turn: AtomicUsize,
}

#[derive(Default)]
struct Routes {
    closed: bool,
    exact: HashMap<String, Vec<Route>>,
    wildcards: Vec<(String, Route)>,
}

#[derive(Clone)]
struct Route {
    group: Option<Arc<str>>,
    mailbox: Arc<Mailbox>,
}

/// What waits unread in one subscription.
struct Mailbox {
    capacity: usize,
    unread: Mutex<Unread>,
    arrived: Notify,
}

#[derive(Default)]
struct Unread {
    messages: VecDeque<Received>,
    closed: bool,
}

impl Plain {
    /// Adds a subscription. `None` when the bus is closed.
    pub(super) fn subscribe(
        self: &Arc<Self>,
        pattern: &str,
        group: Option<&str>,
        capacity: usize,
    ) -> Option<LocalSubscription> {
        let mailbox = Arc::new(Mailbox { capacity: capacity.max(1), unread: Mutex::default(), arrived: Notify::new() });
        let route = Route { group: group.map(Arc::from), mailbox: mailbox.clone() };
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if routes.closed {
            return None;
        }
        if subject::has_wildcard(pattern) {
            routes.wildcards.push((pattern.to_owned(), route));
        } else {
            routes.exact.entry(pattern.to_owned()).or_default().push(route);
        }
        Some(LocalSubscription { plain: self.clone(), pattern: pattern.to_owned(), mailbox })
    }

    /// Puts the message into every matching subscription and into one of each matching group. Says how many took it.
    pub(super) fn deliver(&self, message: &Message, reply: Option<&str>) -> usize {
        let routes = self.routes.read().unwrap_or_else(PoisonError::into_inner);
        let exact = routes.exact.get(&message.subject).map(Vec::as_slice).unwrap_or_default();
        let wildcards = routes.wildcards.iter().filter(|(pattern, _)| subject::matches(pattern, &message.subject));
        let mut taken = 0;
        // Groups are few; a list beats a map.
        let mut groups: Vec<(&str, Vec<&Arc<Mailbox>>)> = Vec::new();
        for route in exact.iter().chain(wildcards.map(|(_, route)| route)) {
            match route.group.as_deref() {
                None => {
                    route.mailbox.put(message, reply);
                    taken += 1;
                }
                Some(name) => match groups.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, members)) => members.push(&route.mailbox),
                    None => groups.push((name, vec![&route.mailbox])),
                },
            }
        }
        for (_, members) in groups {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed);
            if let Some(mailbox) = members.get(turn % members.len()) {
                mailbox.put(message, reply);
                taken += 1;
            }
        }
        taken
    }

    /// Ends every subscription.
    pub(super) fn close(&self) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        routes.closed = true;
        let exact = std::mem::take(&mut routes.exact).into_values().flatten();
        let wildcards = std::mem::take(&mut routes.wildcards).into_iter().map(|(_, route)| route);
        for route in exact.chain(wildcards) {
            route.mailbox.lock().closed = true;
            route.mailbox.arrived.notify_one();
        }
    }

    fn unsubscribe(&self, pattern: &str, mailbox: &Arc<Mailbox>) {
        let mut routes = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        if subject::has_wildcard(pattern) {
            routes.wildcards.retain(|(_, route)| !Arc::ptr_eq(&route.mailbox, mailbox));
        } else if let Some(list) = routes.exact.get_mut(pattern) {
            list.retain(|route| !Arc::ptr_eq(&route.mailbox, mailbox));
            if list.is_empty() {
                routes.exact.remove(pattern);
            }
        }
    }
}

impl Mailbox {
    fn put(&self, message: &Message, reply: Option<&str>) {
        let received = Received { message: message.clone(), reply: reply.map(str::to_owned) };
        let mut unread = self.lock();
        if unread.messages.len() >= self.capacity {
            unread.messages.pop_front();
        }
        unread.messages.push_back(received);
        drop(unread);
        self.arrived.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One subscription; ends when dropped.
pub(super) struct LocalSubscription {
    plain: Arc<Plain>,
    pattern: String,
    mailbox: Arc<Mailbox>,
}

#[async_trait]
impl Subscription for LocalSubscription {
    async fn next(&mut self) -> Option<Received> {
        loop {
            {
                let mut unread = self.mailbox.lock();
                if let Some(received) = unread.messages.pop_front() {
                    return Some(received);
                }
                if unread.closed {
                    return None;
                }
            }
            // There is one reader, so a bell that rang in between is kept for it.
            self.mailbox.arrived.notified().await;
        }
    }

    fn try_next(&mut self) -> Option<Received> {
        self.mailbox.lock().messages.pop_front()
    }
}

impl Drop for LocalSubscription {
    fn drop(&mut self) {
        self.plain.unsubscribe(&self.pattern, &self.mailbox);
    }
}
