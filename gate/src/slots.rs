//! Where a worker keeps its connections, and the tokens that name them.
//!
//! A slot is used again with another epoch, so a token names one connection for ever: what is meant for one that has gone finds
//! nothing. (Between fork and exec a child's copy of a closed socket still raises events.)

use crate::connection::Connection;
use crate::relay::Side;

/// What an event or a deadline is about: a connection's slot, epoch and side, or one of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

impl Token {
    /// Set in a token that names no connection.
    const OTHER: u64 = 1 << 63;
    /// Set in an event's data that is about the backend's socket.
    const BACKEND: u64 = 1;
    const EPOCHS: u32 = 0x7fff_ffff;

    /// The worker's inbox.
    pub(crate) const INBOX: Token = Token(u64::MAX);

    fn connection(slot: u32, epoch: u32) -> Token {
        Token((u64::from(epoch & Self::EPOCHS) << 32) | (u64::from(slot) << 1))
    }

    /// A listener, by its index in the worker.
    pub(crate) fn listener(index: u32) -> Token {
        Token(Self::OTHER | u64::from(index))
    }

    /// The listener that it names; `None`: a connection.
    pub(crate) fn as_listener(self) -> Option<u32> {
        (self.0 & Self::OTHER != 0).then_some(self.0 as u32)
    }

    /// What an event of it carries.
    pub(crate) fn data(self, side: Side) -> u64 {
        match side {
            Side::Client => self.0,
            Side::Backend => self.0 | Self::BACKEND,
        }
    }

    /// What an event is about.
    pub(crate) fn of(data: u64) -> (Token, Side) {
        match data & (Self::OTHER | Self::BACKEND) {
            Self::BACKEND => (Token(data & !Self::BACKEND), Side::Backend),
            _ => (Token(data), Side::Client),
        }
    }

    fn slot(self) -> usize {
        (self.0 as u32 >> 1) as usize
    }

    fn epoch(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

#[derive(Debug, Default)]
struct Slot {
    epoch: u32,
    connection: Option<Connection>,
}

/// A worker's connections.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

impl Slots {
    /// Connections that it holds.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Slots, used or not: the bound of [`Slots::token`].
    pub(crate) fn capacity(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn insert(&mut self, connection: Connection) -> Token {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            self.slots.len() as u32 - 1
        });
        self.slots[slot as usize].connection = Some(connection);
        self.token(slot as usize)
    }

    pub(crate) fn remove(&mut self, token: Token) -> Option<Connection> {
        let slot = &mut self.slots[token.slot()];
        let connection = slot.connection.take_if(|_| slot.epoch == token.epoch())?;
        slot.epoch = (slot.epoch + 1) & Token::EPOCHS;
        self.free.push(token.slot() as u32);
        Some(connection)
    }

    pub(crate) fn get_mut(&mut self, token: Token) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(token.slot())?;
        slot.connection
            .as_mut()
            .filter(|_| slot.epoch == token.epoch())
    }

    pub(crate) fn get(&self, token: Token) -> Option<&Connection> {
        let slot = self.slots.get(token.slot())?;
        slot.connection
            .as_ref()
            .filter(|_| slot.epoch == token.epoch())
    }

    pub(crate) fn contains(&self, token: Token) -> bool {
        self.get(token).is_some()
    }

    /// The token of whatever is in a slot now.
    pub(crate) fn token(&self, slot: usize) -> Token {
        Token::connection(slot as u32, self.slots[slot].epoch)
    }

    /// The connections in a range of slots.
    pub(crate) fn range(&self, from: usize, most: usize) -> impl Iterator<Item = &Connection> {
        let slots = self.slots.iter().skip(from).take(most);
        slots.filter_map(|slot| slot.connection.as_ref())
    }

    /// Every connection.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Connection> {
        self.range(0, usize::MAX)
    }

    pub(crate) fn at(&self, slot: usize) -> Option<&Connection> {
        self.slots[slot].connection.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_from_an_event() {
        let token = Token::connection(0x7fff_ffff, Token::EPOCHS - 1);
        assert_eq!(
            (token.slot(), token.epoch()),
            (0x7fff_ffff, Token::EPOCHS - 1)
        );
        assert_eq!(token.as_listener(), None);
        for side in [Side::Client, Side::Backend] {
            assert_eq!(Token::of(token.data(side)), (token, side));
        }
        for other in [Token::listener(7), Token::listener(8), Token::INBOX] {
            assert_eq!(Token::of(other.data(Side::Client)).0, other);
        }
        assert_eq!(Token::listener(7).as_listener(), Some(7));
    }
}
