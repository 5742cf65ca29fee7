/* Records of the feed as they land: a button, and a list of the latest. The API sends them as a stream of events, which
   is read by hand: an EventSource would not tell why it is refused. */
(function () {
  "use strict";

  var tap = document.getElementById("feedq-tap");
  if (!tap) {
    return;
  }

  var SHOWN_MAX = 200;
  var button = tap.querySelector("button"), status = tap.querySelector("[role=status]"), list = tap.querySelector("[role=log]");
  var listening = null;
  var leftOut = 0;

  function say(text) {
    status.textContent = text;
  }

  function show(row) {
    if (row.event === "end") {
      stop("Ended: " + row.why + ".");
    } else if (row.event === "left_out") {
      leftOut += row.records;
      say("Live; " + leftOut.toLocaleString("en") + " more landed that are not shown.");
    } else {
      var line = document.createElement("p"), at = document.createElement("time");
      at.dateTime = row.at;
      at.textContent = row.at.slice(11, 23);
      line.append(at, " " + row.record + (row.cut ? " … (cut: " + row.bytes.toLocaleString("en") + " bytes)" : ""));
      list.prepend(line);
      while (list.childElementCount > SHOWN_MAX) {
        list.lastElementChild.remove();
      }
    }
  }

  function read(reader, rest, mine) {
    return reader.read().then(function (part) {
      if (listening !== mine) {
        return null;
      }
      if (part.done) {
        throw new Error("The stream broke off.");
      }
      var events = (rest + part.value).split("\n\n");
      rest = events.pop();
      events.forEach(function (event) {
        var data = event.split("\n").find(function (line) { return line.startsWith("data: "); });
        if (data && listening === mine) {
          show(JSON.parse(data.slice(6)));
        }
      });
      return read(reader, rest, mine);
    });
  }

  function refusal(answer) {
    return answer.text().then(function (text) {
      var isJson = /json/.test(answer.headers.get("Content-Type") || "");
      throw new Error((isJson && JSON.parse(text).detail) || "Flower answered " + answer.status + ".");
    });
  }

  function start() {
    var mine = listening = new AbortController();
    leftOut = 0;
    list.replaceChildren();
    list.hidden = false;
    button.textContent = "Stop tapping";
    button.setAttribute("aria-pressed", "true");
    say("Waiting for records; it takes a few seconds.");
    var address = new URL(tap.dataset.address, window.location.origin);
    fetch(address, {credentials: "same-origin", cache: "no-store", signal: mine.signal}).then(function (answer) {
      if (!answer.ok) {
        return refusal(answer);
      }
      return read(answer.body.pipeThrough(new TextDecoderStream()).getReader(), "", mine);
    }).catch(function (error) {
      if (listening === mine) {
        stop(error.name === "TypeError" ? "Flower does not answer." : error.message);
      }
    });
  }

  function stop(text) {
    var mine = listening;
    listening = null;
    mine.abort();
    button.textContent = "Tap";
    button.setAttribute("aria-pressed", "false");
    say(text);
  }

  button.addEventListener("click", function () {
    if (listening) {
      stop("Stopped.");
    } else {
      start();
    }
  });
}());
