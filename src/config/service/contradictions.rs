//! What can't be meant: keys that can't stand beside others.

use syngate_supervisor::config::{Argv, BackendAddress, Pass, ServiceConfig, Strategy};
use syngate_supervisor::readiness::Ready;

use super::Context;
use crate::config::StartError;
use crate::config::layer::COMMAND;
use crate::config::placeholders::{Word, uses};

impl Context<'_> {
    /// Refuses what HAProxy has ways of its own for.
    pub(super) fn haproxy(&self) -> Result<(), StartError> {
        let others = [
            (COMMAND, "haproxy starts it: remove COMMAND"),
            (
                "listen",
                "its configuration says where to listen: remove it",
            ),
            ("backend", "its configuration names the servers: remove it"),
            (
                "pass",
                "its listeners are always made here and passed: remove it",
            ),
            (
                "check",
                "its configuration is always checked, by haproxy -c: remove it",
            ),
            ("ready", "its stats socket proves it: remove it"),
            ("send_proxy", "it always gets PROXY v2: remove it"),
            ("accept_proxy", "write accept-proxy on its bind line"),
        ];
        for (key, cure) in others {
            if self.is_written(key) {
                return Err(
                    self.error(key, format_args!("this can't stand beside haproxy; {cure}"))
                );
            }
        }
        if self.is_written("strategy") {
            let what = "this can't stand beside haproxy; two generations of it can always run at once: remove it";
            return Err(self.error("strategy", what));
        }
        Ok(())
    }

    /// What only a process can have.
    pub(super) fn without_command(
        &self,
        pass: Pass,
        strategy: Strategy,
        ready: &Ready,
    ) -> Result<(), StartError> {
        let cure = "say what starts the backend after `--`, or remove it";
        if pass != Pass::None {
            return Err(self.error(
                "pass",
                format_args!("there is no COMMAND to pass listeners to: {cure}"),
            ));
        }
        if strategy == Strategy::Replace {
            return Err(self.error(
                "strategy",
                format_args!("there is no COMMAND to replace: {cure}"),
            ));
        }
        if matches!(ready, Ready::Notify | Ready::Fd(_)) {
            return Err(self.error(
                "ready",
                format_args!("there is no COMMAND that could say so: {cure}"),
            ));
        }
        if self.is_written("drain_signal") {
            return Err(self.error(
                "drain_signal",
                format_args!("there is no COMMAND to signal: {cure}"),
            ));
        }
        Ok(())
    }

    pub(super) fn command(
        &self,
        argv: &Argv,
        fixed: &[BackendAddress],
        pass: Pass,
        strategy: Strategy,
    ) -> Result<(), StartError> {
        if uses(argv, Word::Socket) && (uses(argv, Word::Addr) || uses(argv, Word::Port)) {
            return Err(self.error(
                COMMAND,
                "{socket} asks for a unix socket, {addr} and {port} for TCP: use one kind",
            ));
        }
        if uses(argv, Word::Fd) && pass != Pass::Fd {
            return Err(self.error(
                "pass",
                "COMMAND has {fd}, and no listener is passed that way: write fd, or remove {fd}",
            ));
        }
        if fixed.is_empty() {
            return Ok(());
        }
        if pass != Pass::None {
            return Err(self.error(
                "backend",
                "with pass COMMAND listens on what it is passed, so it has no address of its own: remove one of the two",
            ));
        }
        if strategy == Strategy::Overlap {
            return Err(self.error(
                "backend",
                "two generations can't listen on one address at once: use {addr}, {port} or {socket} in COMMAND, or add --strategy replace",
            ));
        }
        Ok(())
    }

    pub(super) fn strategy(&self, service: &ServiceConfig) -> Result<(), StartError> {
        match service.strategy {
            Strategy::Replace if !service.keep_previous.is_zero() => Err(self.error(
                "keep_previous",
                "replace stops the old generation before the new one starts, so there is nothing to keep: remove one of the two",
            )),
            Strategy::Replace if service.retry => Err(self.error(
                "retry",
                "replace tries a failed start again by itself: remove retry",
            )),
            Strategy::Overlap if service.max_generations < 2 => Err(self.error(
                "max_generations",
                "a reload needs room for two generations: write at least 2, or add --strategy replace",
            )),
            _ => Ok(()),
        }
    }
}
