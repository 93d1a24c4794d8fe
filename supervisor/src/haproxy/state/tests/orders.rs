//! How orders are sent, and what comes back.

use super::*;

#[test]
fn orders_are_cut_into_lines_that_fit() {
    let order = |number: usize| Order {
        server: format!("backend/server_{number}"),
        setting: Setting::Maint,
    };
    let orders: Vec<Order> = (0..1000).map(order).collect();
    let cut: Vec<&[Order]> = lines(&orders).collect();
    assert_eq!(cut.concat(), orders);
    assert!(cut.len() > 20 && cut.len() < 40, "{}", cut.len());
    assert!(
        cut.iter()
            .all(|line| !line.is_empty() && joined(line).len() < LINE)
    );
    let long = [Order {
        server: "b/".to_owned() + &"s".repeat(2 * LINE),
        setting: Setting::Drain,
    }];
    assert_eq!(lines(&long).collect::<Vec<_>>(), [&long]);
    assert_eq!(lines(&[]).count(), 0);
}

#[test]
fn each_order_has_its_reply() {
    assert_eq!(replies("\n"), [""]);
    assert_eq!(
        replies("\nNo such server.\n\n\n"),
        ["", "No such server.", ""]
    );
    assert_eq!(replies("one\ntwo\n\n"), ["one two"]);
    assert_eq!(replies(""), [""; 0]);
}
