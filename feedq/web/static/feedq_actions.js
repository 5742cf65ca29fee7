/* Buttons that change something. A page has, anywhere in its live part,

     {% raw button(action) %}          with a PageAction of feedq/web/buttons.py

   which becomes <button id data-action="feeds/acme%2Forders/pause" data-method data-says data-etag data-body
   data-fields data-dry-run>. Pressed, it opens the one dialog of the page (action_dialog.html), which asks the API
   with dry_run what would happen, takes a reason, and then asks for it in earnest: with If-Match when the button has
   an ETag, and an Idempotency-Key, the same however often it is tried. An error is shown in the API's words, and
   nothing that was typed is lost. A button with data-refused says only why it is refused. Afterwards the page is
   asked for anew, and focus returns to the button, which may be another element of the same id by then. */
(function () {
  "use strict";

  var dialog = document.getElementById("feedq-dialog");
  if (!dialog) {
    return;
  }

  var NAMED_MAX = 8; // names of a long list that are shown
  var TIMEOUT_MS = 40000; // longer than the API takes at most
  var form = part("form"), fields = part("fields"), would = part("would"), trouble = part("trouble");
  var reason = part("reason"), go = part("go");
  var said = document.getElementById("feedq-said");
  var pressed = null; // {id, data, key, count} of the button that opened the dialog
  var asking = 0; // counts questions, so that a late answer to an old one is not shown

  function part(name) {
    return document.getElementById("feedq-dialog-" + name);
  }

  function element(tag, text) {
    var made = document.createElement(tag);
    made.textContent = text;
    return made;
  }

  // -- the API -------------------------------------------------------------------------------------

  function body() {
    var text = fields.querySelector("textarea");
    if (text) {
      return text.value;
    }
    var made = JSON.parse(pressed.data.body);
    fields.querySelectorAll("input").forEach(function (input) {
      if (input.value.trim()) {
        made[input.name] = input.value.trim();
      }
    });
    if (pressed.count !== null) {
      made.count = pressed.count;
    }
    return Object.keys(made).length ? JSON.stringify(made) : undefined;
  }

  function cookie(name) {
    var found = document.cookie.split("; ").find(function (one) { return one.startsWith(name + "="); });
    return found ? found.slice(name.length + 1) : "";
  }

  function ask(isDry) {
    var asked = pressed; // another one may be pressed before this is answered
    var address = new URL(dialog.dataset.api + pressed.data.action, window.location.origin);
    var headers = {"Accept": "application/json"};
    var sent = pressed.data.method === "DELETE" ? undefined : body();
    if (sent) {
      headers["Content-Type"] = fields.querySelector("textarea") ? "application/yaml" : "application/json";
    }
    if (pressed.data.etag) {
      headers["If-Match"] = pressed.data.etag;
    }
    if (isDry) {
      address.searchParams.set("dry_run", "true");
    } else {
      headers["Idempotency-Key"] = pressed.key;
    }
    if (reason.value.trim()) {
      headers["Feedq-Reason"] = encodeURIComponent(reason.value.trim());
    }
    if (cookie("_xsrf")) {
      headers["X-Xsrftoken"] = cookie("_xsrf");
    }
    return fetch(address, {
      method: pressed.data.method, headers: headers, body: sent, credentials: "same-origin", cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS)
    }).catch(function () {
      throw new Error("Flower does not answer" + (isDry ? "." : "; look whether it was done before you try again."));
    }).then(function (answer) {
      return answer.text().then(function (text) {
        var isJson = /json/.test(answer.headers.get("Content-Type") || "");
        var found = isJson ? JSON.parse(text) : {};
        if (!answer.ok) {
          throw Object.assign(
            new Error(found.detail || text.trim() || "Flower answered " + answer.status + "."),
            {status: answer.status}
          );
        }
        if (isDry && answer.headers.get("ETag")) {
          asked.data.etag = asked.data.etag || answer.headers.get("ETag");
        }
        return found;
      });
    });
  }

  // -- what the dialog says ------------------------------------------------------------------------

  function complain(text) {
    trouble.textContent = text;
    trouble.hidden = !text;
  }

  function names(rows) {
    var shown = rows.slice(0, NAMED_MAX).map(function (row) { return row.name; }).join(", ");
    return rows.length > NAMED_MAX ? shown + " and others" : shown;
  }

  function tell(found) {
    var lines = [];
    if (typeof found.count === "number") {
      pressed.count = found.count;
      lines.push(element("p", found.count.toLocaleString("en") + (found.count === 1 ? " feed: " : " feeds: ") + names(found.done)));
      go.textContent = pressed.title + " " + found.count.toLocaleString("en");
    } else if (found.result) {
      lines.push(element("p", "Afterwards " + found.name + " is " + found.result + "."));
    } else if ("ends_at" in found) {
      lines.push(element("p", "After " + JSON.stringify(found.begins_after) + " up to " + JSON.stringify(found.ends_at) + "."));
    } else if ("after" in found) {
      lines.push(element("p", "From " + JSON.stringify(found.before) + " to " + JSON.stringify(found.after) + "."));
      if (found.duplicates) {
        lines.push(element("p", "Its sink has no key, so records that the source sends again will be there twice."));
      }
    } else {
      ["landed", "dropped"].filter(function (key) { return key in found; }).forEach(function (key) {
        lines.push(element("p", found[key].toLocaleString("en") + (found[key] === 1 ? " record." : " records.")));
      });
    }
    (found.changes || []).forEach(function (change) {
      lines.push(element("p", change.option + ": " + JSON.stringify(change.before) + " → " + JSON.stringify(change.after)));
    });
    would.replaceChildren.apply(would, lines);
  }

  function isComplete() {
    return Array.from(fields.querySelectorAll("input, textarea")).every(function (input) {
      return !input.required || input.value.trim();
    });
  }

  function rehearse(said) {
    var number = ++asking;
    if (pressed.data.dryRun !== "yes" || !isComplete()) {
      go.disabled = false;
      return;
    }
    pressed.count = null;
    go.disabled = true;
    would.replaceChildren(element("p", "Asking what would happen …"));
    ask(true).then(function (found) {
      if (number === asking) {
        complain(said);
        tell(found);
        go.disabled = false;
      }
    }).catch(function (error) {
      if (number === asking) {
        would.replaceChildren();
        complain(error.message);
        // What somebody types into a field may mend it.
        go.disabled = !fields.querySelector("input, textarea");
      }
    });
  }

  function makeFields(wanted) {
    fields.replaceChildren.apply(fields, wanted.map(function (one) {
      var label = element("label", one.label);
      var input = document.createElement(one.text === null ? "input" : "textarea");
      if (one.text !== null) {
        input.value = one.text;
        input.rows = 16;
        input.spellcheck = false;
      }
      label.className = "form-label feedq-field";
      input.className = "form-control";
      input.name = one.name;
      input.required = one.required;
      input.autocomplete = "off";
      input.addEventListener("change", function () { rehearse(""); });
      label.appendChild(input);
      return label;
    }));
  }

  function open(button) {
    var refused = button.dataset.refused || "";
    asking += 1;
    pressed = {id: button.id, title: button.textContent, data: Object.assign({}, button.dataset), count: null};
    pressed.key = Array.from(crypto.getRandomValues(new Uint8Array(12)), function (byte) {
      return byte.toString(16).padStart(2, "0");
    }).join("");
    part("title").textContent = button.textContent;
    part("says").textContent = button.dataset.says;
    part("close").textContent = refused ? "Close" : "Cancel";
    go.textContent = button.textContent;
    go.className = "btn btn-" + (button.classList.contains("btn-outline-danger") ? "danger" : "primary");
    go.hidden = reason.hidden = reason.previousElementSibling.hidden = Boolean(refused);
    makeFields(refused ? [] : JSON.parse(button.dataset.fields));
    would.replaceChildren();
    complain(refused);
    reason.value = "";
    dialog.showModal();
    if (!refused) {
      var first = fields.querySelector("input, textarea") || reason;
      first.focus();
      first.setSelectionRange(0, 0);
      first.scrollTop = 0;
      rehearse("");
    }
  }

  function finish(found) {
    document.dispatchEvent(new Event("feedq:changed"));
    var failed = found.failed || [];
    said.textContent = pressed.title + ": done" + (found.done ? " to " + found.done.length : "")
      + (failed.length ? ", failed for " + failed.length : "");
    if (!failed.length) {
      dialog.close();
      return;
    }
    would.replaceChildren.apply(would, [element("p", "Done to " + found.done.length + "; failed for " + failed.length + ":")]
      .concat(failed.map(function (one) { return element("p", one.name + ": " + one.detail); })));
    go.hidden = true;
    part("close").textContent = "Close";
    part("close").focus();
  }

  function send() {
    var missing = Array.from(fields.querySelectorAll("input, textarea")).find(function (input) {
      return input.required && !input.value.trim();
    });
    if (missing) {
      complain("Say this first: " + missing.parentElement.firstChild.textContent);
      missing.focus();
      return;
    }
    ++asking;
    go.disabled = true;
    complain("");
    ask(false).then(function (found) {
      go.disabled = false;
      finish(found);
    }).catch(function (error) {
      go.disabled = false;
      if (error.status === 412) {
        // Somebody else was faster: the next try is for what is there now, and says first what would happen to it.
        pressed.data.etag = "";
        rehearse(error.message);
      }
      complain(error.message);
    });
  }

  // -- what people do ------------------------------------------------------------------------------

  document.addEventListener("click", function (event) {
    var button = event.target.closest("button[data-action]");
    if (button) {
      open(button);
    }
  });

  form.addEventListener("submit", function (event) {
    event.preventDefault();
    if (!go.disabled && !go.hidden) {
      send();
    }
  });

  part("close").addEventListener("click", function () { dialog.close(); });

  dialog.addEventListener("close", function () {
    // This comes a moment later: somebody quick may be at another button by now, or in its dialog. The browser has
    // given the focus back already, unless the button was replaced meanwhile.
    var active = document.activeElement;
    if (!dialog.open && (active === document.body || dialog.contains(active))) {
      var again = pressed && document.getElementById(pressed.id);
      (again || document.getElementById("main-content")).focus();
    }
  });
}());
