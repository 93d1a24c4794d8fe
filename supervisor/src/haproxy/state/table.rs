//! What `show servers state` says (management guide, section 9.3).
//!
//! The columns are found by their names, since later versions of HAProxy have added some at the end.

use std::collections::HashMap;

/// The only format there has been (`SRV_STATE_FILE_VERSION` of HAProxy's `server-t.h`).
const FORMAT: &str = "1";

/// `srv_op_state` of a server that is down (`SRV_ST_STOPPED`).
pub(super) const STOPPED: u32 = 0;
/// `srv_op_state` of a server whose check wants no new sessions (`SRV_ST_STOPPING`).
pub(super) const STOPPING: u32 = 3;

/// Flags of `srv_admin_state` (`enum srv_admin` of `server-t.h`, the same in 2.6 and 3.5).
pub(super) mod admin {
    /// `SRV_ADMF_FMAINT`: in maintenance by itself.
    pub(in super::super) const FORCED_MAINT: u32 = 0x01;
    /// `SRV_ADMF_CMAINT`: the configuration says `disabled`. It stays when an operator enables the server.
    pub(in super::super) const CONFIGURED_MAINT: u32 = 0x04;
    /// `SRV_ADMF_FDRAIN`: drained by itself.
    pub(in super::super) const FORCED_DRAIN: u32 = 0x08;
    /// `SRV_ADMF_MAINT`: in maintenance, forced, inherited from the server that it tracks (0x02), or without an address (0x20).
    pub(in super::super) const ANY_MAINT: u32 = 0x23;
}

/// Flags of `srv_check_state` and `srv_agent_state` (`CHK_ST_*` of `check-t.h`), and values of `srv_check_result` (`CHK_RES_*`);
/// the same in 2.6 and 3.5.
pub(super) mod check {
    /// `CHK_ST_CONFIGURED`.
    pub(in super::super) const CONFIGURED: u32 = 0x02;
    /// `CHK_ST_ENABLED`: nobody has said `disable health` or `disable agent`.
    pub(in super::super) const ENABLED: u32 = 0x04;
    /// `CHK_RES_PASSED`, and above it `CHK_RES_CONDPASS`: the last check of this process was a success.
    pub(in super::super) const PASSED: u32 = 3;
}

/// What there is of one server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    /// `BACKEND/SERVER`.
    pub(super) name: String,
    pub(super) place: Place,
    /// `SRV_ST_*`.
    pub(super) operation: u32,
    /// See [`admin`].
    pub(super) admin: u32,
    /// The weight as it is, 0 to 256.
    pub(super) weight: u32,
    /// The weight of the configuration.
    pub(super) configured_weight: u32,
    /// The checks' counter: 0 is as far down as there is.
    pub(super) health: u32,
    /// What this process's last check has found, see [`check`].
    pub(super) found: u32,
    /// See [`check`].
    pub(super) check: u32,
    /// See [`check`].
    pub(super) agent: u32,
    /// Where the check goes if not to the server: address and port.
    pub(super) checked_at: [Option<String>; 2],
}

/// Where a server's connections go, as far as HAProxy tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// None of a unix socket, and of a name that isn't resolved.
    pub(super) address: Option<String>,
    pub(super) port: u32,
    /// The name that is resolved at run time.
    name: Option<String>,
    /// The SRV record that it comes from.
    record: Option<String>,
}

impl Place {
    /// Whether both are known to be one.
    pub(super) fn is(&self, other: &Place) -> bool {
        self.address.is_some() && self == other
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.address {
            Some(address) if address.contains(':') => write!(f, "[{address}]:{}", self.port)?,
            Some(address) => write!(f, "{address}:{}", self.port)?,
            None => f.write_str("an address that HAProxy doesn't tell")?,
        }
        match &self.name {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// In HAProxy's order.
    pub(super) servers: Vec<Server>,
    /// Lines that aren't understood.
    pub(super) unread: usize,
}

impl Table {
    /// Reads an answer.
    ///
    /// # Errors
    /// The format is another one; the sentence says which.
    pub(super) fn parse(text: &str) -> Result<Table, String> {
        let mut lines = text.lines();
        let format = lines.next().unwrap_or_default();
        if format != FORMAT {
            return Err(format!("its format is `{format}` and not {FORMAT}"));
        }
        let header = lines.next().and_then(|line| line.strip_prefix('#'));
        let names = header.unwrap_or_default().split_whitespace();
        let columns: HashMap<&str, usize> = names.zip(0..).collect();
        let mut table = Table::default();
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match server(&columns, line) {
                Some(server) => table.servers.push(server),
                None => table.unread += 1,
            }
        }
        Ok(table)
    }

    /// The servers by their names; none for a name that is there twice, since a command would reach one of them only.
    pub(super) fn by_name(&self) -> HashMap<&str, Option<&Server>> {
        let mut servers = HashMap::new();
        for server in &self.servers {
            let once = servers.entry(server.name.as_str());
            once.and_modify(|it| *it = None).or_insert(Some(server));
        }
        servers
    }
}

fn server(columns: &HashMap<&str, usize>, line: &str) -> Option<Server> {
    let values: Vec<&str> = line.split_whitespace().collect();
    let value = |column: &str| values.get(*columns.get(column)?).copied();
    let text = |column: &str| value(column).filter(|value| *value != "-");
    let owned = |column: &str| text(column).map(String::from);
    let number = |column: &str| text(column)?.parse().ok();
    let name = [value("be_name")?, value("srv_name")?];
    if !name.iter().all(|part| part.chars().all(is_of_a_name)) {
        return None;
    }
    Some(Server {
        name: name.join("/"),
        place: Place {
            address: owned("srv_addr"),
            port: number("srv_port")?,
            name: owned("srv_fqdn"),
            record: owned("srvrecord"),
        },
        operation: number("srv_op_state")?,
        admin: number("srv_admin_state")?,
        weight: number("srv_uweight")?,
        configured_weight: number("srv_iweight")?,
        health: number("srv_check_health")?,
        found: number("srv_check_result")?,
        check: number("srv_check_state")?,
        agent: number("srv_agent_state")?,
        checked_at: [owned("srv_check_addr"), owned("srv_check_port")],
    })
}

/// What HAProxy allows in a name (`invalid_char` of its `tools.c`): nothing that its command line would have to be told to keep.
fn is_of_a_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | ':' | '_' | '-')
}
