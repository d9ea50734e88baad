//! An engine that is a node of a cluster.

use super::*;

/// The bulk string of an answer.
fn bulk(answer: &str) -> &str {
    answer.split("\r\n").nth(1).unwrap_or_default()
}

/// Two nodes that share all slots, half of them each, and know it.
#[track_caller]
fn two_nodes() -> [Engine; 2] {
    let mut nodes = [Engine::away(), Engine::away()];
    nodes.iter_mut().for_each(Engine::begin_as_node);
    let [one, other] = &nodes;
    one.told("CLUSTER ADDSLOTSRANGE 0 8191");
    other.told("CLUSTER ADDSLOTSRANGE 8192 16383");
    let itself = one.told("CLUSTER NODES");
    let place = bulk(&itself).split(' ').nth(1).expect("a place");
    let bus = place.split(['@', ',']).nth(1).expect("its bus");
    other.told(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", one.port()));
    for node in &nodes {
        wait_until("a whole cluster", || {
            node.told("CLUSTER INFO").contains("cluster_state:ok")
        });
    }
    nodes
}

/// Moves a slot and its keys, as an administrator's tools do.
#[track_caller]
fn moves(slot: &str, from: &Engine, to: &Engine) {
    let [source, target] = [from, to].map(|node| bulk(&node.told("CLUSTER MYID")).to_owned());
    to.told(&format!("CLUSTER SETSLOT {slot} IMPORTING {source}"));
    from.told(&format!("CLUSTER SETSLOT {slot} MIGRATING {target}"));
    let keys = from.told(&format!("CLUSTER GETKEYSINSLOT {slot} 1000"));
    for key in keys.lines().filter(|line| line.starts_with("weir:")) {
        let port = to.port();
        from.told(&format!("MIGRATE 127.0.0.1 {port} {key} 0 5000"));
    }
    for node in [to, from] {
        let done = node.told(&format!("CLUSTER SETSLOT {slot} NODE {target}"));
        assert!(done.starts_with("+OK"), "{done}");
    }
}

/// FLEET-2, FLEET-15: instances find the node that has the keys of the fleet by any node of its
/// cluster, and go on with another when these have moved there.
#[test]
#[ignore = "needs redis-server"]
fn instances_follow_the_slot_of_the_fleet() {
    let application = Application::ok();
    let nodes = two_nodes();
    let slot = nodes[0].told("CLUSTER KEYSLOT weir:{weir}:log");
    let slot = slot.lines().next().and_then(|slot| slot.strip_prefix(':'));
    let slot = slot.expect("a slot");
    let is_first = slot.parse::<u16>().expect("a number") < 8192;
    let [owner, other_node] = match is_first {
        true => [&nodes[0], &nodes[1]],
        false => [&nodes[1], &nodes[0]],
    };
    // The one that does not have it is named.
    let place = (other_node.place()).replace("valkey://", "valkey+cluster://");
    let [one, other] = ["edge-1", "edge-2"].map(|name| {
        let mut settings = settings(owner, name);
        settings[0].1.clone_from(&place);
        start_at(&application, &state_dir(), &settings)
    });
    wait_in_step(&one, 2);
    assert_eq!(fleet(&one)["engine"], place);
    one.ban("client", "203.0.113.7", "1h");
    other.wait_until_refused("203.0.113.7");
    let has_log = |node: &Engine| node.told("EXISTS weir:{weir}:log").starts_with(":1");
    assert!(has_log(owner));
    moves(slot, owner, other_node);
    other.ban("client", "198.51.100.7", "1h");
    one.wait_until_refused("198.51.100.7");
    wait_in_step(&one, 2);
    wait_in_step(&other, 2);
    assert!(has_log(other_node));
}
