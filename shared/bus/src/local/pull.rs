//! A pull on a local stream. It takes messages only when asked, so a dropped pull holds none.

use std::{
    pin::{Pin, pin},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{
    sync::Notify,
    time::{Instant, Sleep},
};

use super::{ack::LocalAck, stream::Stream};
use crate::{BusError, Delivery, Pull};

/// One open pull.
pub(super) struct LocalPull {
    stream: Arc<Stream>,
    consumer: u64,
    bell: Arc<Notify>,
    left: usize,
    expiry: Pin<Box<Sleep>>,
}

impl LocalPull {
    pub(super) fn new(stream: Arc<Stream>, consumer: u64, bell: Arc<Notify>, max: usize, expires: Duration) -> Self {
        Self { stream, consumer, bell, left: max, expiry: Box::pin(tokio::time::sleep(expires)) }
    }

    fn take(&mut self) -> Result<Option<Delivery>, BusError> {
        let Some(taken) = self.stream.take(self.consumer, Instant::now())? else { return Ok(None) };
        self.left -= 1;
        Ok(Some(Delivery {
            message: taken.message,
            sequence: taken.sequence,
            delivery_count: taken.deliveries,
            acker: Arc::new(LocalAck {
                stream: self.stream.clone(),
                consumer: self.consumer,
                sequence: taken.sequence,
                answered: AtomicBool::new(false),
            }),
        }))
    }

    fn over(&self) -> bool {
        self.left == 0 || Instant::now() >= self.expiry.deadline()
    }
}

#[async_trait]
impl Pull for LocalPull {
    async fn next(&mut self) -> Result<Option<Delivery>, BusError> {
        if self.over() {
            return Ok(None);
        }
        if let Some(delivery) = self.take()? {
            return Ok(Some(delivery));
        }
        let bell = self.bell.clone();
        loop {
            // In line before the last look, so that a message stored in between rings for this pull.
            let mut rung = pin!(bell.notified());
            rung.as_mut().enable();
            if let Some(delivery) = self.take()? {
                return Ok(Some(delivery));
            }
            tokio::select! {
                biased;
                () = rung => {}
                () = &mut self.expiry => {
                    self.left = 0;
                    return Ok(None);
                }
            }
        }
    }

    fn try_next(&mut self) -> Option<Delivery> {
        // The error is told by the next `next`.
        if self.over() { None } else { self.take().ok().flatten() }
    }
}
