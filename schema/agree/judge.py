"""Judges every example with Python's jsonschema, from the plain files alone (SCHEMA-3, SCHEMA-4).

usage: judge.py <the schema folder> [<a folder with messages and this crate's reports on them>]
"""

import json
import sys
from pathlib import Path

from jsonschema import Draft202012Validator
from referencing import Registry, Resource

folder = Path(sys.argv[1])


def read(name):
    return json.loads((folder / name).read_text(encoding="utf-8"))


names = ["message"]
for family in ("c2s", "s2c", "s2s"):
    files = sorted((folder / family).iterdir())
    names += [f"{family}/{file.name.removesuffix('.schema.json')}" for file in files]

schemas = {name: read(f"{name}.schema.json") for name in names}
registry = Registry().with_resources(
    (schema["$id"], Resource.from_contents(schema)) for schema in schemas.values()
)
checker = Draft202012Validator.FORMAT_CHECKER
# Without its optional package, jsonschema takes every text for a date-time and says nothing.
for format in ("date-time", "uuid"):
    if format not in checker.checkers:
        sys.exit(f"the format {format} is not checked: a package is missing")


def pointer(path):
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def paths_of(errors):
    return {pointer(error.absolute_path) for error in errors}


judged = 0
faults = []
validators = {}
for name, schema in schemas.items():
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema, registry=registry, format_checker=checker)
    validators[name] = validator
    examples = read(f"examples/{name}.json")
    for example in examples["valid"]:
        judged += 1
        for error in validator.iter_errors(example["message"]):
            faults.append(f"{name}: {example['why']}: refused: {error.message[:200]}")
    for example in examples["invalid"]:
        judged += 1
        errors = list(validator.iter_errors(example["message"]))
        paths = paths_of(errors)
        if paths != {example["path"]}:
            faults.append(f"{name}: {example['why']}: fails at {paths or 'nothing'}, not at {example['path']!r}")
        elif all(error.validator != example["keyword"] for error in errors):
            keywords = {error.validator for error in errors}
            faults.append(f"{name}: {example['why']}: fails by {keywords}, not by {example['keyword']}")

print(f"jsonschema: {judged} examples of {len(names)} schemas")

if len(sys.argv) > 2:
    compared = 0
    for family in ("c2s", "s2c", "s2s"):
        messages = (Path(sys.argv[2]) / family).open(encoding="utf-8")
        reports = (Path(sys.argv[2]) / f"{family}.reports").open(encoding="utf-8")
        for line, report in zip(messages, reports, strict=True):
            compared += 1
            message, report = json.loads(line), json.loads(report)
            ours = paths_of(validators[f"{family}/{message['command'].lower()}"].iter_errors(message))
            theirs = {violation["instance_path"] for violation in report.get("violations", [])}
            if ours != theirs:
                faults.append(f"{line.strip()}: fails at {ours or 'nothing'}, for this crate at {theirs or 'nothing'}")
    judged = min(judged, compared)
    print(f"jsonschema: {compared} messages compared")

for fault in faults:
    print(fault, file=sys.stderr)
print(f"jsonschema: {len(faults)} disagreements")
sys.exit(1 if faults or judged < 400 else 0)
