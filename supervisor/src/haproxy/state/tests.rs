//! Without a process: what HAProxy said once, and what it might say.

use super::*;

mod orders;
mod places;
mod properties;
mod settings;
mod tables;

const HEADER: &str = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
                      srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
                      srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl srv_check_port \
                      srv_check_addr srv_agent_addr srv_agent_port\n";

/// One line of an answer.
#[derive(Debug, Clone)]
struct Row {
    name: &'static str,
    address: &'static str,
    port: u16,
    operation: u32,
    admin: u32,
    weight: u32,
    configured: u32,
    found: u32,
    health: u32,
    check: u32,
    agent: u32,
    fqdn: &'static str,
    record: &'static str,
    check_port: u16,
    check_address: &'static str,
}

/// A server that nothing has happened to, with a check.
const PLAIN: Row = Row {
    name: "s",
    address: "127.0.0.1",
    port: 1443,
    operation: 2,
    admin: 0,
    weight: 10,
    configured: 10,
    found: 0,
    health: 2,
    check: 6,
    agent: 0,
    fqdn: "-",
    record: "-",
    check_port: 0,
    check_address: "-",
};

fn answer(rows: &[Row]) -> String {
    let line = |row: &Row| {
        format!(
            "2 web 1 {} {} {} {} {} {} 17 6 {} {} {} {} 0 0 {} {} {} 0 {} {} - 0\n",
            row.name,
            row.address,
            row.operation,
            row.admin,
            row.weight,
            row.configured,
            row.found,
            row.health,
            row.check,
            row.agent,
            row.fqdn,
            row.port,
            row.record,
            row.check_port,
            row.check_address
        )
    };
    HEADER.to_owned() + &rows.iter().map(line).collect::<String>() + "\n"
}

/// The orders for one server, and the warnings.
fn between(old: Row, new: Row) -> (String, Vec<String>) {
    let Carried { orders, warnings } = carry(&answer(&[old]), &answer(&[new]));
    (joined(&orders), warnings)
}

fn orders(old: Row, new: Row) -> String {
    let (orders, warnings) = between(old.clone(), new.clone());
    assert_eq!(warnings, [""; 0], "{old:?} {new:?}");
    orders
}
