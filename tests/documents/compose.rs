//! The files of `examples/compose/` agree with each other and with the repository. They are not run: the images are not
//! on the machine of a test.

use std::path::{Path, PathBuf};

use yaml_rust2::{Yaml, YamlLoader};

use crate::packages::packages;
use crate::texts::{read, sources_in};
use support::sources::root;

fn folder() -> PathBuf {
    root().join("examples/compose")
}

fn yaml(path: &Path) -> Yaml {
    let mut documents = YamlLoader::load_from_str(&read(path.to_owned()).1).expect("YAML");
    assert_eq!(documents.len(), 1, "{}", path.display());
    documents.remove(0)
}

fn text(yaml: &Yaml) -> &str {
    yaml.as_str().unwrap_or_else(|| panic!("not a text: {yaml:?}"))
}

fn entries(yaml: &Yaml) -> impl Iterator<Item = (&str, &Yaml)> {
    yaml.as_hash().into_iter().flatten().map(|(name, value)| (text(name), value))
}

fn list(yaml: &Yaml) -> &[Yaml] {
    yaml.as_vec().map_or(&[], Vec::as_slice)
}

/// The mounts of a service: the file here, and the path in the container.
fn mounts(service: &Yaml) -> Vec<(PathBuf, &str)> {
    let mount = |volume| {
        let [from, to, "ro"] = text(volume).split(':').collect::<Vec<_>>()[..] else {
            panic!("{volume:?}")
        };
        let file = folder().join(from).canonicalize();
        (file.unwrap_or_else(|error| panic!("{from}: {error}")), to)
    };
    list(&service["volumes"]).iter().map(mount).collect()
}

/// Returns the file that a service has at a path.
fn mounted(service: &Yaml, path: &str) -> PathBuf {
    let found = mounts(service).into_iter().find(|(_, to)| *to == path);
    found.unwrap_or_else(|| panic!("nothing is at {path}")).0
}

#[test]
fn services_depend_on_services_and_mount_files() {
    let compose = yaml(&folder().join("compose.yaml"));
    let services: Vec<_> = entries(&compose["services"]).collect();
    let names = ["redis", "service", "load", "prometheus", "grafana"];
    assert!(services.iter().map(|(name, _)| *name).eq(names), "{services:?}");
    for (name, service) in services {
        let needed = &service["depends_on"];
        for needed in list(needed).iter().map(text).chain(entries(needed).map(|(name, _)| name)) {
            assert!(names.contains(&needed), "{name} depends on {needed}");
        }
        assert!(mounts(service).iter().all(|(file, _)| file.is_file()), "{name}");
        for port in list(&service["ports"]) {
            assert!(text(port).starts_with("127.0.0.1:"), "{name} opens {port:?} to strangers");
        }
        assert!(service["image"].as_str().is_some() != service["build"].as_hash().is_some());
    }
}

#[test]
fn the_service_is_the_example_with_variables_that_it_reads() {
    let services = &yaml(&folder().join("compose.yaml"))["services"];
    let service = &services["service"];
    let build = &service["build"];
    let context = folder().join(text(&build["context"])).canonicalize().expect("a folder");
    assert_eq!(context, root().canonicalize().expect("a folder"));
    let (_, dockerfile) = read(context.join(text(&build["dockerfile"])));
    let line = |start: &str| {
        let found = dockerfile.lines().find_map(|line| line.strip_prefix(start));
        found.unwrap_or_else(|| panic!("the Dockerfile lacks `{start}`"))
    };
    let command = line("RUN cargo build --release --locked --package ");
    let (package, program) = command.split_once(" --bin ").expect("a program");
    let packages = packages();
    let package = packages.iter().find(|known| known["name"] == package).expect("a package");
    let mut targets = package["targets"].as_array().expect("targets").iter();
    let target = targets.find(|target| target["name"] == program).expect("a target");
    assert_eq!(target["kind"][0], "bin");
    assert_eq!(
        line("COPY --from=build /source/target/release/"),
        format!("{program} /usr/local/bin/{program}")
    );
    assert_eq!(line("CMD "), format!("[\"{program}\"]"));
    let rust = package["rust_version"].as_str().expect("a version");
    assert_eq!(line("FROM rust:"), format!("{rust}-slim AS build"));

    let source = read(target["src_path"].as_str().expect("a path").into()).1;
    let runtime: String = sources_in(&root().join("ratelimit-runtime/src"))
        .into_iter()
        .map(|(_, text)| text)
        .collect();
    for (name, _) in entries(&service["environment"]) {
        let reader = if name.starts_with("RATELIMIT_") { &runtime } else { &source };
        assert!(reader.contains(&format!("\"{name}\"")), "nothing reads {name}");
    }
    let port = text(&service["environment"]["PORT"]);
    assert_eq!(line("EXPOSE "), port);
    let redis = text(&service["environment"]["RATELIMIT_REDIS_URL"]);
    assert_eq!(redis, "redis://redis:6379");
    let load = text(&list(&services["load"]["command"])[2]);
    assert!(load.contains(&format!("http://service:{port}/hi/")), "{load}");
    assert!(source.contains("route(\"/hi/{user_id}\""));
}

#[test]
fn prometheus_and_grafana_have_the_files_of_the_guide() {
    let services = &yaml(&folder().join("compose.yaml"))["services"];
    let monitoring = root().join("docs/monitoring").canonicalize().expect("a folder");
    let prometheus = &services["prometheus"];
    let config = yaml(&mounted(prometheus, "/etc/prometheus/prometheus.yml"));
    let rules = text(&config["rule_files"][0]);
    assert_eq!(mounted(prometheus, rules), monitoring.join("alerts.yml"));
    assert!(entries(&yaml(&monitoring.join("alerts.yml"))).any(|(name, _)| name == "groups"));
    let scraped = &config["scrape_configs"][0];
    let target = &scraped["dns_sd_configs"][0];
    assert_eq!((text(&target["names"][0]), text(&target["type"])), ("service", "A"));
    let port = target["port"].as_i64().expect("a port").to_string();
    assert_eq!(port, text(&services["service"]["environment"]["PORT"]));
    // The default path.
    assert!(scraped["metrics_path"].is_badvalue());
    assert!(read(root().join("examples/axum.rs")).1.contains("route(\"/metrics\""));

    let grafana = &services["grafana"];
    let provisioned = |kind: &str| {
        yaml(&mounted(grafana, &format!("/etc/grafana/provisioning/{kind}/ratelimit.yml")))
    };
    let dashboards = provisioned("dashboards");
    let path = text(&dashboards["providers"][0]["options"]["path"]);
    let dashboard = mounted(grafana, &format!("{path}/ratelimit.json"));
    assert_eq!(dashboard, monitoring.join("dashboard.json"));
    let source = &provisioned("datasources")["datasources"][0];
    assert_eq!(text(&source["type"]), "prometheus");
    assert_eq!(text(&source["url"]), "http://prometheus:9090");
    let published = |service: &Yaml| text(&service["ports"][0]).to_owned();
    assert_eq!(published(prometheus), "127.0.0.1:9090:9090");
    let guide = read(folder().join("README.md")).1;
    let dashboard: serde_json::Value = serde_json::from_str(&read(dashboard).1).expect("JSON");
    let page = format!("http://127.0.0.1:3001/d/{}>", dashboard["uid"].as_str().expect("a name"));
    assert!(guide.contains(&page) && guide.contains("http://127.0.0.1:9090/"), "{guide}");
    assert_eq!(published(grafana), "127.0.0.1:3001:3000");
}
