use super::*;

fn parse(text: &str) -> Result<File, String> {
    super::parse(Path::new("gate.toml"), text).map_err(|error| error.to_string())
}

#[track_caller]
fn refused(text: &str, says: &str) {
    let error = parse(text).unwrap_err();
    assert_eq!(error, says);
}

/// The texts of the only service's key.
fn texts_of(key: &str, text: &str) -> Vec<String> {
    let file = parse(text).unwrap();
    file.services[0].keys.texts(key).to_vec()
}

#[test]
fn services_stand_in_the_order_of_the_file() {
    let file = parse("[services.web]\n[services.api]\nlisten = 80\n[services.b]\n").unwrap();
    let names: Vec<_> = file.services.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["web", "api", "b"]);
    assert_eq!(file.services[1].place.as_deref(), Some("gate.toml:2"));
}

#[test]
fn unknown_keys_name_the_line_and_what_is_near() {
    refused(
        "workers = 2\n[services.web]\ndrain_timout = \"3s\"\n",
        "gate.toml:3: unknown key `drain_timout`: did you mean `drain_timeout`?",
    );
    refused(
        "metric = \"off\"\n",
        "gate.toml:1: unknown key `metric`: did you mean `metrics`?",
    );
    refused(
        "[services.web]\nfrobnicate = 1\n",
        "gate.toml:2: unknown key `frobnicate`: remove it, or see `syngate run --help` for the names",
    );
}

#[test]
fn a_misspelt_table_of_services_is_told_from_a_key() {
    for name in ["service", "servcies", "Services"] {
        refused(
            &format!("[{name}.web]\nlisten = 80\n"),
            &format!("gate.toml:1: unknown table `{name}`: did you mean [services.NAME]?"),
        );
    }
}

#[test]
fn keys_in_the_wrong_place_are_sent_to_the_right_one() {
    refused(
        "\nlisten = 80\n",
        "gate.toml:2: `listen` can't stand here: it belongs into [services.NAME]",
    );
    refused(
        "[services.web]\nworkers = 1\n",
        "gate.toml:2: `workers` can't stand here: it belongs to the gate, not to web: write it above all [services.NAME]",
    );
    refused(
        "config = \"x\"\n",
        "gate.toml:1: unknown key `config`: remove it, or see `syngate run --help` for the names",
    );
}

#[test]
fn what_isnt_toml_names_its_line() {
    let error = parse("workers = 2\nmetrics = \n").unwrap_err();
    assert!(error.starts_with("gate.toml:2: "), "{error}");
    let error = parse("workers = 1\nworkers = 2\n").unwrap_err();
    assert!(
        error.starts_with("gate.toml:2: ") && error.contains("duplicate"),
        "{error}"
    );
}

#[test]
fn services_are_tables_with_plain_names() {
    refused(
        "services = 1\n",
        "gate.toml:1: services must be a table: write [services.NAME]",
    );
    refused(
        "[services]\nweb = 1\n",
        "gate.toml:2: services.web must be a table: write [services.web]",
    );
    refused(
        "[services.\"a/b\"]\n",
        "gate.toml:1: `a/b` can't be a service's name: use a to z, 0 to 9, _ and -, at most 63 of them",
    );
}

#[test]
fn values_have_the_kind_that_their_key_wants() {
    refused(
        "workers = 1.5\n",
        "gate.toml:1: workers: wants a string or a number, not a float",
    );
    refused(
        "[services.web]\nstrategy = [\"replace\"]\n",
        "gate.toml:2: strategy: takes one value, not an array",
    );
    refused(
        "[services.web]\nlisten = []\n",
        "gate.toml:2: listen: the array is empty: give a value, or remove the key",
    );
    refused(
        "[services.web]\nready = [\"true\"]\n",
        "gate.toml:2: ready: an array must begin with \"exec:PROGRAM\"",
    );
}

#[test]
fn listeners_are_a_value_or_an_array() {
    assert_eq!(texts_of("listen", "[services.a]\nlisten = 80"), ["80"]);
    assert_eq!(
        texts_of("listen", "[services.a]\nlisten = [80, \"web=[::1]:81\"]"),
        ["80", "web=[::1]:81"]
    );
}

#[test]
fn commands_are_a_string_or_an_array() {
    let split = ["app", "--name", "a b"];
    assert_eq!(
        texts_of(COMMAND, "[services.a]\ncommand = \"app --name 'a b'\""),
        split
    );
    assert_eq!(
        texts_of(
            COMMAND,
            "[services.a]\ncommand = [\"app\", \"--name\", \"a b\"]"
        ),
        split
    );
    let check = texts_of("check", "[services.a]\ncheck = [\"app\", \"-c\", \"a b\"]");
    assert_eq!(value::command(&check[0]).unwrap(), ["app", "-c", "a b"]);
    let ready = texts_of("ready", "[services.a]\nready = [\"exec:probe it\", \"$x\"]");
    let probe = value::command(ready[0].strip_prefix("exec:").unwrap()).unwrap();
    assert_eq!(probe, ["probe it", "$x"]);
}
