#![allow(missing_docs, unused, clippy::todo)]
use super::binary::Binary;
use crate::{child::Spawner, config::ListenerConfig};
use std::{
    io,
    net::IpAddr,
    os::fd::RawFd,
    path::{Path, PathBuf},
    time::Duration,
};
use syngate_gate::Target;
#[derive(Clone, Debug)]
pub struct File {
    pub path: PathBuf,
    pub text: Vec<u8>,
}
pub struct World<'a> {
    pub binary: &'a Binary,
    pub unprivileged: bool,
    pub descriptors: u64,
    pub environment: &'a dyn Fn(&[u8]) -> Option<Vec<u8>>,
    pub resolve: &'a dyn Fn(&str) -> io::Result<IpAddr>,
    pub read: &'a dyn Fn(&Path) -> io::Result<Vec<u8>>,
}
#[derive(Debug, thiserror::Error)]
#[error("x")]
pub struct Refusal;
#[derive(Clone, Debug, PartialEq)]
pub struct Plan;
pub fn plan(_f: Vec<File>, _w: &World<'_>) -> Result<Plan, Refusal> {
    Ok(Plan)
}
impl Plan {
    pub fn listeners(&self) -> &[ListenerConfig] {
        &[]
    }
    pub fn privates(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
    pub fn warnings(&self) -> &[String] {
        &[]
    }
    pub fn copy(&self, _p: &Place<'_>) -> Copy {
        todo!()
    }
}
pub struct Place<'a> {
    pub directory: &'a Path,
    pub privates: &'a [RawFd],
    pub stats: RawFd,
    pub suffix: &'a str,
}
pub struct Copy {
    pub files: Vec<(PathBuf, Vec<u8>)>,
    pub configurations: Vec<PathBuf>,
    pub links: Vec<(PathBuf, PathBuf)>,
}
