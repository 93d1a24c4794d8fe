//! A service's public listeners: bound by a run, opened at its flip, closed when nothing needs them any more.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use syngate_gate::accept_queue::Reader;
use syngate_gate::listener::{self, BindError, Listener, Options};
use syngate_gate::{ListenerId, ServiceId};
use syngate_metrics::ConnectionState::{Connecting, Greeting, Pending};
use tokio::time::{Instant, sleep, timeout_at};

use super::context::{Context, Message};
use super::service::Service;
use crate::config::{ListenerConfig, ServiceConfig};
use crate::rollout::Event;

/// How often a service that ends looks whether anything is pending.
const PENDING_AGAIN: Duration = Duration::from_millis(10);

/// How soon a bind is tried again that a listener on its way out stands in the way of; that takes little more than a second.
const BIND_AGAIN: Duration = Duration::from_millis(10);

/// A public listener that doesn't accept yet.
pub(super) struct Bound {
    pub(super) config: ListenerConfig,
    options: Options,
    socket: Origin,
}

enum Origin {
    New(Listener),
    /// A service that leaves has it: handed over at the flip, so that a client always finds it open.
    Leaving,
}

/// A listener of a service that leaves.
pub(super) struct Left {
    pub(super) service: ServiceId,
    pub(super) open: Open,
}

impl Left {
    /// Whether another service's listener is to have its address.
    pub(super) fn has(&self, listener: &ListenerConfig) -> bool {
        self.open.config.has_address_of(listener)
    }
}

/// A public listener that accepts.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) config: ListenerConfig,
    options: Options,
    pub(super) id: ListenerId,
    /// As bound.
    pub(super) address: String,
}

impl Service {
    /// Binds what is new. Nothing accepts yet.
    pub(super) fn bind(&mut self, cx: &Context, config: &ServiceConfig) -> Result<(), String> {
        self.bound.clear();
        for listener in &config.listeners {
            let mut open = self.listeners.iter();
            let becomes = |open: &Open| config.listener_of(&open.config);
            if open.any(|open| becomes(open).is_some_and(|other| std::ptr::eq(other, listener))) {
                continue;
            }
            let options = options(cx, config, listener);
            for socket in origins(cx, listener, &options, &self.listeners)? {
                self.bound.push(Bound {
                    config: listener.clone(),
                    options: options.clone(),
                    socket,
                });
            }
        }
        Ok(())
    }

    /// Binds what is new for a run. An address that a listener on its way out still has is waited for.
    pub(super) fn try_open(&mut self, cx: &Context, run: u64, config: Arc<ServiceConfig>) {
        let result = self.bind(cx, &config);
        if result.is_err() && !cx.closing.is_empty() {
            let (messages, id) = (cx.messages.clone(), self.id);
            tokio::spawn(async move {
                sleep(BIND_AGAIN).await;
                let _ = messages.send(Message::Open(id, run, config));
            });
            return;
        }
        cx.event(self.id, Event::Opened(run, result));
    }

    /// Whether it waits for its flip with listeners that it takes over then.
    pub(super) fn takes_over(&self) -> bool {
        let mut bound = self.bound.iter();
        bound.any(|bound| matches!(bound.socket, Origin::Leaving))
    }

    /// What is bound begins to accept. A service that leaves opens nothing any more, and its own listeners are taken over only by
    /// one that serves.
    pub(super) async fn open(&mut self, cx: &mut Context) {
        let bound = std::mem::take(&mut self.bound);
        if self.leaving {
            return;
        }
        for bound in bound {
            let Bound {
                config,
                options,
                socket,
            } = bound;
            match socket {
                Origin::New(socket) => {
                    let open = self.open_new(cx, config, options, socket).await;
                    self.listeners.extend(open);
                }
                Origin::Leaving if self.rollout.active().is_none() => {
                    self.bound.push(Bound {
                        config,
                        options,
                        socket,
                    });
                }
                Origin::Leaving => self.take_over(cx, &config, &options).await,
            }
        }
    }

    /// `None`: the service itself has come to its end.
    async fn open_new(
        &self,
        cx: &Context,
        config: ListenerConfig,
        options: Options,
        socket: Listener,
    ) -> Option<Open> {
        let address = socket.address().to_string();
        let queue = socket.queue(&mut Reader::new());
        let backlog = queue.map_or(0, |queue| queue.max);
        tracing::info!(service = self.name, listener = config.name, %address, family = %socket.family(), backlog, "listening");
        let id = cx.gate.open(self.id, socket, config.raw).await.ok()?;
        Some(Open {
            config,
            options,
            id,
            address,
        })
    }

    /// Takes over what services that leave have of this listener now: one that has come back since keeps its own.
    async fn take_over(&mut self, cx: &mut Context, config: &ListenerConfig, options: &Options) {
        let is_it = |left: &mut Left| left.has(config);
        let all: Vec<Left> = cx.leaving.extract_if(.., is_it).collect();
        let (name, raw) = (&config.name, config.raw);
        if all.is_empty() {
            tracing::warn!(
                service = self.name,
                listener = name,
                address = %config.address,
                "the service that had it doesn't leave any more: it isn't taken over"
            );
        }
        for Left { service, open } in all {
            // `None`: that service has come to its end meanwhile.
            let Some(id) = cx.gate.hand_over(open.id, self.id, name, raw).await else {
                continue;
            };
            cx.send(Message::HandedOver(service, open.id));
            if let Err(error) = cx.gate.change(id, &open.options, options) {
                tracing::warn!(service = self.name, listener = name, %error, "the open listener isn't changed");
            }
            tracing::info!(
                service = self.name,
                listener = name,
                address = open.address,
                "listening in place of a service that leaves"
            );
            self.listeners.push(Open {
                config: config.clone(),
                options: options.clone(),
                id,
                address: open.address,
            });
        }
    }

    /// The open sockets get what the configuration of the active generation asks of them, as far as an open one can be changed;
    /// their names they have had with the flip. A rollback changes them back.
    pub(super) fn change(&mut self, cx: &Context, config: &ServiceConfig) {
        for open in &mut self.listeners {
            let Some(wanted) = config.listener_of(&open.config) else {
                continue;
            };
            if let listener::Address::Unix { path, mode } = &wanted.address
                && wanted.address != open.config.address
                && let Err(error) = listener::set_mode(path, *mode)
            {
                tracing::warn!(service = self.name, listener = wanted.name, %error, "its file keeps its permissions");
            }
            let options = options(cx, config, wanted);
            if options != open.options {
                match cx.gate.change(open.id, &open.options, &options) {
                    Ok(()) => open.options = options,
                    // Tried again at the next flip.
                    Err(error) => {
                        tracing::warn!(service = self.name, listener = wanted.name, %error, "the open listener isn't changed");
                    }
                }
            }
            open.config = wanted.clone();
        }
    }

    /// A run has ended: what is active, or is to be as soon as its start succeeds, has its listeners, whose clients may wait; all
    /// others are closed.
    pub(super) async fn keep_wanted(&mut self, cx: &mut Context) {
        let wanted = self.rollout.wanted().cloned();
        let is_wanted = |listener: &ListenerConfig| {
            wanted
                .as_ref()
                .is_some_and(|wanted| wanted.listener_of(listener).is_some())
        };
        self.bound.retain(|bound| is_wanted(&bound.config));
        self.open(cx).await;
        let stray = |open: &mut Open| !is_wanted(&open.config);
        let closing = self.listeners.extract_if(.., stray).collect();
        self.close(cx, closing);
    }

    /// Closes listeners beside whatever else goes on.
    fn close(&self, cx: &Context, listeners: Vec<Open>) {
        let (gate, token) = (Arc::clone(&cx.gate), cx.closing.token());
        self.closing.spawn(async move {
            for open in listeners {
                gate.close(open.id).await;
            }
            drop(token);
        });
    }

    /// Closes the public listeners, waits until nothing is pending or `end`, and says so.
    pub(super) fn empty(&mut self, cx: &Context, end: Option<Instant>) {
        let (gate, messages, id) = (Arc::clone(&cx.gate), cx.messages.clone(), self.id);
        let listeners: Vec<ListenerId> = self.listeners.drain(..).map(|open| open.id).collect();
        let metrics = Arc::clone(&self.metrics);
        let closing = cx.closing.token();
        tokio::spawn(async move {
            let empty = async {
                for listener in listeners {
                    gate.close(listener).await;
                }
                drop(closing);
                while [Greeting, Pending, Connecting]
                    .into_iter()
                    .any(|state| metrics.open(state) > 0)
                {
                    sleep(PENDING_AGAIN).await;
                }
            };
            match end {
                Some(end) => drop(timeout_at(end, empty).await),
                None => empty.await,
            }
            let _ = messages.send(Message::Emptied(id));
        });
    }
}

/// How a listener of this configuration is set up.
fn options(cx: &Context, config: &ServiceConfig, listener: &ListenerConfig) -> Options {
    Options {
        backlog: config.backlog,
        keepalive: config.keepalive,
        v6only: v4_stands_beside(cx, config, listener),
        own: listener.own.clone(),
    }
}

/// Where a listener's sockets come from: a service that leaves, or they are bound.
fn origins(
    cx: &Context,
    listener: &ListenerConfig,
    options: &Options,
    open: &[Open],
) -> Result<Vec<Origin>, String> {
    if cx.leaving.iter().any(|left| left.has(listener)) {
        return Ok(vec![Origin::Leaving]);
    }
    let bound = bind(cx, listener, options, open)?;
    Ok(bound.into_iter().map(Origin::New).collect())
}

/// The sockets of a listener: one, or all inherited ones of its name. `open` are those that the service has.
fn bind(
    cx: &Context,
    listener: &ListenerConfig,
    options: &Options,
    open: &[Open],
) -> Result<Vec<Listener>, String> {
    let listener::Address::Inherited(name) = &listener.address else {
        let mut open = open.iter().map(|open| &open.config);
        let socket = listener::bind(&listener.name, &listener.address, options);
        let socket = socket.map_err(|error| match error {
            BindError::InUse { .. } => open
                .find(|open| open.stands_in_the_way_of(listener))
                .map_or_else(|| error.to_string(), |open| is_open(open, listener)),
            other => other.to_string(),
        });
        return Ok(vec![socket?]);
    };
    let Some(sockets) = cx.inherited.get(name) else {
        return Err(format!(
            "no socket named {name} was inherited: see FileDescriptorName= in systemd.socket(5)"
        ));
    };
    let take = |socket: &OwnedFd| {
        let copy = socket
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| error.to_string())?;
        listener::from_inherited(&listener.name, copy, options).map_err(|error| error.to_string())
    };
    sockets.iter().map(take).collect()
}

/// Why a listener can't have the address that an open one has, and keeps until the flip.
fn is_open(open: &ListenerConfig, wanted: &ListenerConfig) -> String {
    if open.address != wanted.address {
        return format!(
            "{} overlaps {}, which is open as listener {} and is only closed after the flip: listen on another port, or remove the \
             listener with one reload and add it with the next",
            wanted.address, open.address, open.name
        );
    }
    format!(
        "{} is open as listener {}, and v6only and interface of an open socket can't be changed: listen on another port, or remove \
         the listener with one reload and add it with the next",
        wanted.address, open.name
    )
}

/// Whether an IPv4 listener has the port of this one, so that `[::]` must leave IPv4 alone.
fn v4_stands_beside(cx: &Context, config: &ServiceConfig, listener: &ListenerConfig) -> bool {
    let listener::Address::Tcp(own) = &listener.address else {
        return false;
    };
    let others = cx
        .config
        .services
        .iter()
        .filter(|service| service.name != config.name);
    let mut all = config
        .listeners
        .iter()
        .chain(others.flat_map(|service| &service.listeners));
    all.any(|other| matches!(&other.address, listener::Address::Tcp(other) if other.is_ipv4() && other.port() == own.port()))
}
